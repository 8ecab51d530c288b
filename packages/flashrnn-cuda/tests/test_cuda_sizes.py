"""Sizes that the contract does not go to, on a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashrnn import BackendUnavailable, FlashRNNConfig, flashrnn
from flashrnn.cells import CELLS
from flashrnn_testing import create_inputs, model_test
from flashrnn_testing.tolerances import TOLERANCES

pytestmark = pytest.mark.gpu

BACKENDS = ("cuda_fused", "cuda")
SMALL_HEADS = (1, 3, 16, 17, 31, 33, 64, 65, 96, 127, 128)
LARGE_HEADS = (129, 200, 500, 768, 2048, 4096)


def check(backend: str, function: str, B: int, T: int, NH: int, D: int, dtype: torch.dtype = torch.bfloat16) -> None:
    """Every state and gradient against vanilla_fwbw."""
    sizes = {"batch_size": B, "sequence_size": T, "num_heads": NH, "head_dim": D}
    assert model_test(**sizes, function=function, backend=backend, backend_cmp="vanilla_fwbw", dtype=dtype, device="cuda")


@pytest.mark.parametrize("head_dim", SMALL_HEADS)
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_small_heads(backend: str, function: str, head_dim: int) -> None:
    check(backend, function, 5, 12, 2, head_dim)
    if backend == "cuda" or head_dim <= 64:
        check(backend, function, 5, 12, 2, head_dim, torch.float32)


@pytest.mark.parametrize("head_dim", LARGE_HEADS)
@pytest.mark.parametrize("function", CELLS)
def test_large_heads(function: str, head_dim: int) -> None:
    check("cuda", function, 5, 6, 1, head_dim)


@pytest.mark.parametrize("batch_size", [1, 7, 8, 9, 15, 16, 17, 300])
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_batch_sizes(backend: str, function: str, batch_size: int) -> None:
    check(backend, function, batch_size, 7, 3, 40)


@pytest.mark.parametrize("sequence_size", [0, 1, 2, 3, 1000])
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_sequence_sizes(backend: str, function: str, sequence_size: int) -> None:
    check(backend, function, 4, sequence_size, 2, 64)


def last_rows(inputs: tuple[Tensor, ...], count: int) -> list[Tensor]:
    """The same problem for the last batch rows alone, which do not depend on the others."""
    Wx, states, R, b = inputs
    return [Wx[-count:], R, b, states[:, -count:]]


def compare_last_rows(backend: str, function: str, B: int, T: int, NH: int, D: int) -> None:
    """Outputs and the gradient of Wx for the last two rows, against vanilla_fwbw run on them alone."""
    inputs = create_inputs(B, T, NH, D, function, True, torch.bfloat16, "cuda")
    Wx, states, R, b = (x.detach().requires_grad_() for x in inputs)
    out, _ = flashrnn(Wx, R, b, states, function=function, backend=backend)
    (dWx,) = torch.autograd.grad(out[0].sum(), Wx)
    few = [x.detach().clone().requires_grad_() for x in last_rows((Wx, states, R, b), 2)]
    expected, _ = flashrnn(*few, function=function, backend="vanilla_fwbw")
    (d_expected,) = torch.autograd.grad(expected[0].sum(), few[0])
    bounds = TOLERANCES[torch.bfloat16]
    for found, wanted, tolerance in (
        (out[:, -2:], expected, bounds.output),
        (dWx[-2:], d_expected, bounds.gradient),
    ):
        error = (found.float() - wanted.float()).norm() / wanted.float().norm()
        assert error < tolerance, error


@pytest.mark.parametrize("backend", BACKENDS)
def test_65536_steps(backend: str) -> None:
    compare_last_rows(backend, "lstm", 2, 65_536, 1, 16)


@pytest.mark.parametrize("backend", BACKENDS)
def test_70000_rows_times_heads(backend: str) -> None:
    compare_last_rows(backend, "gru", 7_000, 3, 10, 32)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tensor_of_more_than_2_to_the_31_elements(backend: str) -> None:
    B, T, NH, D = 2_800, 1_024, 12, 64
    assert B * T * NH * D > 2**31
    compare_last_rows(backend, "elman", B, T, NH, D)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_models_on_two_streams(backend: str) -> None:
    cases = [create_inputs(16, 300, 4, 64, function, True, torch.bfloat16, "cuda", 1) for function in ("lstm", "gru")]
    calls = [dict(zip(("Wx", "states", "R", "b"), case)) for case in cases]

    def run(call: dict[str, Any], function: str) -> list[Tensor]:
        inputs = [call[name].detach().requires_grad_() for name in ("Wx", "R", "b", "states")]
        out, last = flashrnn(*inputs, function=function, backend=backend)
        return [out, *torch.autograd.grad(out.float().sum() + last.float().sum(), inputs)]

    alone = [run(call, function) for call, function in zip(calls, ("lstm", "gru"))]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    together: list[list[Tensor]] = [[], []]
    for _ in range(5):
        for i, (call, function) in enumerate(zip(calls, ("lstm", "gru"))):
            with torch.cuda.stream(streams[i]):
                together[i] = run(call, function)
    torch.cuda.synchronize()
    for one, other in zip(alone, together):
        assert all(torch.equal(x, y) for x, y in zip(one, other))


@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_fifty_runs_are_equal_to_the_bit(backend: str, function: str) -> None:
    Wx, states, R, b = create_inputs(17, 50, 3, 64, function, True, torch.bfloat16, "cuda")
    inputs, config = [Wx, R, b, states], FlashRNNConfig(function=function, backend=backend)

    def run() -> list[Tensor]:
        out, last = flashrnn(*inputs, config=config)
        return [out, last, *torch.autograd.grad(out.sum() + last.sum(), inputs)]

    first = run()
    for _ in range(49):
        assert all(torch.equal(x, y) for x, y in zip(first, run()))


def test_a_head_that_does_not_fit_is_refused() -> None:
    Wx, states, R, b = create_inputs(2, 3, 1, 4096, "lstm", True, torch.bfloat16, "cuda")
    with pytest.raises(BackendUnavailable, match="backend='cuda'"):
        flashrnn(Wx, R, b, states, backend="cuda_fused")
