"""flashrnn.step: one time step, equal to a piece of the sequence to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from core_inputs import BACKENDS, FUNCTIONS, Sizes, assert_equal, gradients, make_inputs
from flashrnn import ConfigError, DtypeError, FlashRNNConfig, ShapeError, flashrnn, step

SIZES = Sizes(B=3, T=6, NH=2, D=4)
RESETS = torch.tensor([[0, 0, 1, 0, 1, 0], [1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
every = pytest.mark.parametrize("function", FUNCTIONS)
each_backend = pytest.mark.parametrize("backend", BACKENDS)


def steps(Wx: Tensor, *rest: Any, **options: Any) -> tuple[Tensor, Tensor]:
    """The outputs h [B, T, NH, D] of steps one after the other, and the states after the last, [NS, B, NH, D]."""
    R, b, states = (*rest, None)[:3]
    resets = options.pop("resets", None)
    outputs = []
    for t in range(Wx.shape[1]):
        now = None if resets is None else resets[:, t]
        h, states = step(Wx[:, t], R, b, states, resets=now, **options)
        outputs.append(h)
    return torch.stack(outputs, 1), states


@pytest.mark.parametrize("resets", [None, RESETS], ids=["whole", "resets"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@each_backend
@every
def test_steps_equal_the_sequence_to_the_bit(function: str, backend: str, dtype: torch.dtype, resets: Any) -> None:
    *tensors, states = make_inputs(function, SIZES, dtype)
    states = states.detach().to(torch.promote_types(dtype, torch.float32))
    options = {"function": function, "backend": backend, "resets": resets}
    whole, last = flashrnn(*tensors, states, **options)
    h, kept = steps(*tensors, states, **options)
    assert h.dtype == dtype and kept.dtype == states.dtype
    assert_equal((h, kept), (whole[0], last[:, :, 0]), 0)
    whole, _ = flashrnn(*tensors, **options)  # from zeros, that step keeps in float32
    assert_equal(steps(*tensors, **options)[0], whole[0], 0)


@each_backend
@every
def test_gradients_flow_through_steps(function: str, backend: str) -> None:
    tensors = make_inputs(function, SIZES)
    options = {"function": function, "backend": backend, "resets": RESETS}
    states, last = flashrnn(*tensors, **options)
    expected = gradients((states[0], last[:, :, 0]), tensors)
    assert_equal(gradients(steps(*tensors, **options), tensors), expected)


def test_every_form_of_the_call() -> None:
    Wx, R, b, states = make_inputs("lstm", SIZES)
    expected = step(Wx[:, 0], R, b, states)
    assert_equal(step(Wx[:, 0], R, b, {"h": states[0], "c": states[1]}), expected, 0)
    for layouts in (("TBGHD", "STBHD"), ("BTGHD", "STBHD"), ("TBGHD", "SBTHD")):
        config = FlashRNNConfig("lstm", input_shape=layouts[0], output_shape=layouts[1])
        assert_equal(step(Wx[:, 0], R, b, states, config=config), expected, 0)
    assert step(Wx[:, 0], R, b, dtype="bfloat16")[0].dtype == torch.bfloat16
    assert step(Wx[:, 0], R, b, dtype="bfloat16")[1].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        h, kept = step(Wx[:, 0].float(), R, b)
    assert (h.dtype, kept.dtype) == (torch.bfloat16, torch.float32)
    h, kept = step(Wx[:0, 0], R, b)
    assert h.shape == (0, 2, 4) and kept.shape == (2, 0, 2, 4)


def test_refusals() -> None:
    Wx, R, b, states = make_inputs("lstm", SIZES)
    with pytest.raises(ShapeError, match=r"^Wx: expected 4 axes \[B, NG, NH, D\], got shape \[3, 6, 4, 2, 4\]\.$"):
        step(Wx, R, b)
    with pytest.raises(DtypeError, match=r"^Wx: expected a tensor, got NoneType"):
        step(None, R, b)
    with pytest.raises(ShapeError, match=r"^resets: expected 1 axes \[B\], got shape \[3, 6\]"):
        step(Wx[:, 0], R, b, resets=RESETS)
    with pytest.raises(ShapeError, match=r"^states: expected shape \[NS, B, NH, D\] = \[2, 3, 2, 4\]"):
        step(Wx[:, 0], R, b, states[:1])
    with pytest.raises(ConfigError, match=r"^function: expected one of"):
        step(Wx[:, 0], R, b, function="mamba")
