"""What a forward pass keeps for the backward pass."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from core_inputs import FUNCTIONS, Sizes, gradients, make_inputs, run


def kept(function: str, tensors: Sequence[Tensor], **options: Any) -> tuple[list[Tensor], tuple[Tensor, Tensor]]:
    """The tensors that a forward pass saves, and its results."""
    saved: list[Tensor] = []

    def pack(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        outputs = run(function, "vanilla_fwbw", list(tensors), **options)
    return saved, outputs


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_what_is_kept(function: str, dtype: torch.dtype, recompute: bool) -> None:
    """All states but not the last ones, R, b and, of Wx and the activations, one or the other; no copies, no casts."""
    B, T, NH, D = sizes = Sizes(B=3, T=5, NH=2, D=7)
    Wx, R, b, initial = make_inputs(function, sizes, torch.float64)
    saved, (states, _) = kept(function, [Wx, R, b, initial], dtype=dtype, recompute=recompute)
    NS, activations = states.shape[0], {"lstm": 4, "gru": 4, "elman": 0, "slstm": 4}[function]
    expected = {"states": (NS * B * T * NH * D, dtype), "R": (R.numel(), R.dtype), "b": (b.numel(), b.dtype)}
    expected["initial"] = (initial.numel(), initial.dtype)
    if recompute:
        expected["Wx"] = (Wx.numel(), Wx.dtype)
    elif activations:
        expected["saved"] = (T * activations * NH * B * D, dtype)
    got = sorted((x.numel(), str(x.dtype)) for x in saved if x.numel() > 0)
    assert got == sorted((count, str(kind)) for count, kind in expected.values())
    assert any(x.data_ptr() == Wx.data_ptr() for x in saved) == recompute


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_Wx_is_freed_unless_it_is_recomputed_from(function: str, recompute: bool) -> None:
    Wx, *rest = make_inputs(function)
    projected = Wx * 2  # as by a linear layer
    outputs = run(function, "vanilla_fwbw", [projected, *rest], recompute=recompute)
    watch = weakref.ref(projected.untyped_storage())
    del projected
    gc.collect()
    assert (watch() is not None) == recompute
    assert all(torch.isfinite(x).all() for x in gradients(outputs, [Wx, *rest]))
