"""Options of FlashRNNConfig: each means the same as in the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashrnn import flashrnn

from ..compare import check_close
from ..inputs import random_masks
from ..results import compare, compute
from .base import ContractBase

OPTIONS = {
    "forward_clipval": {"forward_clipval": 0.25},
    "gradient_recurrent_clipval": {"gradient_recurrent_clipval": 0.1},
    "gradient_recurrent_cut": {"gradient_recurrent_cut": True},
    "cut and clip": {"gradient_recurrent_cut": True, "gradient_recurrent_clipval": 0.1},
    "recompute": {"recompute": True},
    "all": {"forward_clipval": 0.5, "gradient_recurrent_clipval": 0.2, "recompute": True},
}


class OptionTests(ContractBase):
    """Options."""

    @pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
    @pytest.mark.parametrize("masked", [False, True])
    def test_option_equals_the_reference(
        self, function: str, dtype: torch.dtype, device: str, options: dict[str, Any], masked: bool
    ) -> None:
        case = self.case(function, device, dtype, batch_size=9, sequence_size=12)
        masks = random_masks(9, 12, case.Wx.device) if masked else (None, None)
        actual, expected = (
            compute(config, *case, *masks)
            for config in (self.config(function, **options), self.reference_config(function, **options))
        )
        compare(actual, expected, dtype)

    @pytest.mark.parametrize("name", [name for name in OPTIONS if name != "recompute"])
    def test_option_has_an_effect(self, function: str, device: str, name: str) -> None:
        """So that the comparison with the reference means something."""
        case = self.case(function, device, self.dtypes[0], batch_size=9, sequence_size=12)
        plain, changed = (compute(self.config(function, **options), *case) for options in ({}, OPTIONS[name]))
        assert any(not torch.equal(plain[key], changed[key]) for key in plain)

    @pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # an interpreter's, at 0 times infinity in padding
    @pytest.mark.parametrize("width", [5, 16, 33])
    def test_an_infinite_gradient_is_clipped(self, function: str, dtype: torch.dtype, device: str, width: int) -> None:
        """Before its step gradients are finite again; padding inside a backend, where it meets zeros, makes no NaN of it."""
        if function != "elman":
            pytest.skip("infinities of several gates, whose sum is NaN")
        self.skip_without_infinity(dtype)
        Wx, R, b, _ = (x.detach() for x in self.case(function, device, dtype, head_dim=width))
        gradients = []
        for config in (f(function, gradient_recurrent_clipval=0.5) for f in (self.config, self.reference_config)):
            leaf = Wx.clone().requires_grad_()
            states, _ = flashrnn(leaf, R, b, config=config)
            outside = torch.ones_like(states)
            outside[0, :, 3, :, 1] = float("inf")
            gradients.append(torch.autograd.grad(states, leaf, outside)[0])
        actual, expected = gradients
        assert torch.isinf(actual[:, 3, :, :, 1]).all()
        assert torch.isfinite(actual[:, :3]).all()
        check_close("gradient of Wx", actual[:, :3], expected[:, :3], dtype=dtype, gradient=True)
