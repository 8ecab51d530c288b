"""Gradients against finite differences, and the options that change them against an independent loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from core_inputs import (
    BACKENDS,
    FUNCTIONS,
    RECOMPUTE,
    Sizes,
    assert_equal,
    copies,
    gradients,
    make_inputs,
    run,
    weights_like,
)
from core_reference import reference
from flashrnn import DoubleBackwardError, flashrnn

LENGTHS = torch.tensor([3, 1])
RESETS = torch.tensor([[False, True, False], [True, False, True]])
MASKS = {
    "plain": (None, None),
    "lengths": (LENGTHS, None),
    "resets": (None, RESETS),
    "both": (torch.tensor([0, 2]), RESETS),
}
OPTIONS = [{}, {"forward_clipval": 0.3}, {"recompute": True}]


def check(
    how: Any, function: str, backend: str, masks: str, no_history: bool = False, fast: bool = False, **options: Any
) -> None:
    """Finite differences of all outputs by all inputs; of slstm's h alone, with m held fixed (and c, n where n is zero)."""
    tensors = make_inputs(function)
    lengths, resets = MASKS[masks]
    if function == "slstm":
        *tensors, states = tensors
        h, c, n, m = (x.detach().clone() for x in states.unbind(0))
        tensors.append(h.requires_grad_())
        if no_history:
            c.zero_(), n.zero_()
        else:
            tensors += [c.requires_grad_(), n.requires_grad_()]

        def outputs(Wx: Tensor, R: Tensor, b: Tensor, h: Tensor, c: Tensor = c, n: Tensor = n) -> tuple[Tensor, ...]:
            states, last = run(function, backend, [Wx, R, b, torch.stack([h, c, n, m])], lengths, resets, **options)
            return states[0], last[0]
    else:

        def outputs(*tensors: Tensor) -> tuple[Tensor, ...]:
            return run(function, backend, list(tensors), lengths, resets, **options)

    torch.manual_seed(0)  # fast_mode draws random directions
    assert how(outputs, tensors, fast_mode=fast)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck(function: str, backend: str) -> None:
    check(gradcheck, function, backend, "plain")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("masks", ["plain", "both"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradcheck_along_random_directions(function: str, backend: str, masks: str, options: dict[str, Any]) -> None:
    check(gradcheck, function, backend, masks, fast=True, **options)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_of_slstm_without_history(backend: str, options: dict[str, Any]) -> None:
    check(gradcheck, "slstm", backend, "both", no_history=True, fast=True, **options)


@pytest.mark.parametrize("masks", ["plain", "both"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradgradcheck_of_vanilla(function: str, masks: str) -> None:
    check(gradgradcheck, function, "vanilla", masks, fast=True)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_second_derivatives_are_refused_by_vanilla_fwbw(function: str) -> None:
    tensors = make_inputs(function)
    states, _ = run(function, "vanilla_fwbw", tensors)
    (dWx,) = torch.autograd.grad(states.square().sum(), tensors[:1], create_graph=True)
    with pytest.raises(DoubleBackwardError, match="vanilla"):
        dWx.sum().backward()


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


@pytest.mark.parametrize("wanted", [0, 1, 2, 3])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_one_gradient_alone_is_the_same_as_among_all(function: str, backend: str, wanted: int) -> None:
    tensors = make_inputs(function)
    expected = gradients(run(function, backend, tensors), tensors)[wanted]
    alone = [x.detach().requires_grad_(k == wanted) for k, x in enumerate(tensors)]
    (got,) = gradients(run(function, backend, alone), alone[wanted : wanted + 1])
    assert_equal(got, expected, tolerance=0)


@pytest.mark.parametrize("output", [0, 1])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_gradient_of_one_output_alone(function: str, backend: str, output: int) -> None:
    tensors = make_inputs(function)
    others = copies(tensors)
    got = gradients(run(function, backend, tensors)[output : output + 1], tensors)
    assert_equal(got, gradients(reference(function, others)[output : output + 1], others, unused=True))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_nan_in_the_padding_changes_nothing(function: str, backend: str, recompute: bool) -> None:
    tensors = make_inputs(function)
    expected = run(function, backend, tensors, LENGTHS, recompute=recompute)
    dirty = copies(tensors)
    with torch.no_grad():
        dirty[0][1, 1:] = float("nan")
    got = run(function, backend, dirty, LENGTHS, recompute=recompute)
    assert_equal(got, expected, tolerance=0)
    found = gradients(got, dirty)
    assert_equal(found, gradients(expected, tensors), tolerance=0)
    assert torch.count_nonzero(found[0][1, 1:]) == 0


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


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("backend", BACKENDS)
def test_4096_ones_sum_to_4096(backend: str, dtype: torch.dtype) -> None:
    B, T, NH, D = 8, 512, 1, 2
    Wx, R, b = torch.zeros(B, T, 1, NH, D), torch.zeros(1, NH, D, D), torch.zeros(1, NH, D)
    b.requires_grad_()
    states, _ = flashrnn(Wx, R, b, function="elman", backend=backend, dtype=dtype)
    states.sum().backward()
    assert_equal(b.grad, torch.full_like(b, 4096), tolerance=0)


@pytest.mark.parametrize("sizes", [Sizes(T=0), Sizes(B=0), Sizes(B=0, T=0), Sizes()], ids=["T0", "B0", "both0", "lengths0"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_step_passes_the_gradient_on(function: str, backend: str, sizes: Sizes) -> None:
    tensors = make_inputs(function, sizes)
    outputs = run(function, backend, tensors, torch.zeros(sizes.B, dtype=torch.int64))
    assert_equal(outputs[1].squeeze(2), tensors[3], tolerance=0)
    *zeros, d_states = gradients(outputs, tensors)
    assert all(torch.count_nonzero(x) == 0 for x in zeros)
    assert_equal(d_states[:3], weights_like(outputs)[1].squeeze(2)[:3], tolerance=0)
    assert torch.count_nonzero(d_states[3:]) == 0
