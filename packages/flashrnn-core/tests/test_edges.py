"""One gradient or output alone, NaN in the padding, no step at all, long sums."""

from __future__ import annotations

import pytest
import torch

from core_inputs import BACKENDS, FUNCTIONS, LENGTHS, Sizes, assert_equal, copies, gradients, make_inputs, run, weights_like
from core_reference import reference
from flashrnn import flashrnn


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
