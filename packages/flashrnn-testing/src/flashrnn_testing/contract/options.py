"""Options of FlashRNNConfig: each means the same as in the reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

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
