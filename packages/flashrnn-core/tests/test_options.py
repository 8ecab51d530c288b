"""The options that clip or cut, and the masks with them, against the loop in core_reference.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from core_inputs import BACKENDS, FUNCTIONS, MASKS, RECOMPUTE, Sizes, assert_equal, copies, gradients, make_inputs, run
from core_reference import reference

RECURRENT = [
    {"gradient_recurrent_clipval": 0.1},
    {"gradient_recurrent_cut": True},
    {"gradient_recurrent_clipval": 0.1, "gradient_recurrent_cut": True},
    {"gradient_recurrent_clipval": 0.2, "forward_clipval": 0.3},
    {"forward_clipval": 0.3},
    {},
]


@pytest.mark.parametrize("options", RECURRENT, ids=str)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_equal_those_of_the_loop(function: str, backend: str, masks: str, options: dict[str, Any]) -> None:
    tensors = make_inputs(function)
    lengths, resets = MASKS[masks]
    others = copies(tensors)
    expected = reference(function, others, lengths, resets, **options)
    for recompute in RECOMPUTE[backend]:
        got = run(function, backend, tensors, lengths, resets, recompute=recompute, **options)
        assert_equal(got, expected)
        assert_equal(gradients(got, tensors), gradients(expected, others, unused=True))


@pytest.mark.parametrize("option", [{"gradient_recurrent_clipval": 0.1}, {"gradient_recurrent_cut": True}], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_loop_of_the_test_obeys_the_option(function: str, option: dict[str, Any]) -> None:
    """The option changes dWx of the first step but not of the last, whose gradient crosses no step."""
    tensors = make_inputs(function)
    plain = gradients(reference(function, tensors), tensors, unused=True)[0]
    changed = gradients(reference(function, tensors, **option), tensors, unused=True)[0]
    assert not torch.allclose(plain[:, 0], changed[:, 0])
    assert_equal(plain[:, -1], changed[:, -1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cut", [False, True])
def test_only_the_direct_path_of_gru_passes_the_cut(backend: str, cut: bool) -> None:
    """With z = 1 nothing but the direct path stands between the initial h and the last."""
    Wx, R, b, states = make_inputs("gru")
    with torch.no_grad():
        Wx[:, :, 1] = 1000
    _, last = run("gru", backend, [Wx, R, b, states], gradient_recurrent_cut=cut)
    (grad,) = torch.autograd.grad(last.sum(), states)
    assert_equal(grad, torch.ones_like(grad))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", ["lstm", "elman", "slstm"])
def test_the_cut_leaves_no_gradient_of_the_initial_h(function: str, backend: str) -> None:
    tensors = make_inputs(function)
    states, _ = run(function, backend, tensors, gradient_recurrent_cut=True)
    (grad,) = torch.autograd.grad(states.sum(), tensors[3:])
    assert torch.count_nonzero(grad[0]) == 0
    if function != "elman":
        assert torch.count_nonzero(grad[1]) == grad[1].numel()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_both_backends_find_the_same_h_clipped(function: str, dtype: torch.dtype) -> None:
    """h after one step, with R = 0 so that elements do not mix: which are clipped is the same before and after rounding.

    An element is taken as clipped if no gradient of it remains: that of one gate alone may vanish by rounding.
    """
    Wx, R, b, states = make_inputs(function, Sizes(B=64, T=1, NH=2, D=64), torch.float32)
    R = torch.zeros_like(R)
    found = []
    for backend in BACKENDS:
        out, _ = run(function, backend, [Wx, R, b, states], dtype=dtype, forward_clipval=0.3)
        assert out[0].abs().max() <= torch.tensor(0.3, dtype=dtype)
        dWx, d_states = torch.autograd.grad(out[0].sum(), (Wx, states))
        found.append((dWx[:, 0] != 0).any(1) | (d_states != 0).any(0))
    assert torch.equal(*found)
    assert 0.05 < found[0].double().mean() < 0.95


@pytest.mark.parametrize("option", ["forward_clipval", "gradient_recurrent_clipval"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_huge_clipval_clips_nothing(backend: str, dtype: torch.dtype, option: str) -> None:
    tensors = make_inputs("lstm", dtype=dtype)
    expected, got = run("lstm", backend, tensors), run("lstm", backend, tensors, **{option: 3e38})
    assert_equal(got, expected, tolerance=0)
    assert_equal(gradients(got, tensors), gradients(expected, tensors), tolerance=0)
