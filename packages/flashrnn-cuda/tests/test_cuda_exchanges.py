"""cuda_fused by every exchange, on a GPU: where the plan takes it, and where it would not."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from flashrnn import flashrnn
from flashrnn.cells import CELLS
from flashrnn_cuda.compile.kernel import Kernel
from flashrnn_cuda.device import device
from flashrnn_cuda.fused import forced
from flashrnn_cuda.launch import function as loaded
from flashrnn_testing import BackendContract, create_inputs, model_test

pytestmark = pytest.mark.gpu

EXCHANGES = ("cluster", "grid", "clusters", "mailed")
HEADS = (129, 192, 200, 256, 384, 500, 512, 640, 768, 1000, 1024, 1536, 2048)


@pytest.fixture
def exchange(request: pytest.FixtureRequest) -> Iterator[str]:
    """Only this exchange, whatever the plan would take."""
    if request.param in ("cluster", "clusters") and torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    with forced(exchange=request.param):
        yield request.param


every_exchange = pytest.mark.parametrize("exchange", EXCHANGES, indirect=True)


@pytest.mark.parametrize("exchange", ["cluster"], indirect=True)
@pytest.mark.usefixtures("exchange")
class TestCluster(BackendContract):
    """Through distributed shared memory."""

    backend = "cuda_fused"
    has_infinity_in_float32 = False
    head_dims = (1, 33, 64)


@pytest.mark.parametrize("exchange", ["grid"], indirect=True)
@pytest.mark.usefixtures("exchange")
class TestGrid(BackendContract):
    """Through L2."""

    backend = "cuda_fused"
    has_infinity_in_float32 = False
    head_dims = (9, 33, 64)


@pytest.mark.parametrize("exchange", ["clusters"], indirect=True)
@pytest.mark.usefixtures("exchange")
class TestClusters(BackendContract):
    """On the way back through distributed shared memory and L2; forward, through L2 alone."""

    backend = "cuda_fused"
    has_infinity_in_float32 = False
    head_dims = (9, 33, 64)


@pytest.mark.parametrize("exchange", ["mailed"], indirect=True)
@pytest.mark.usefixtures("exchange")
class TestMailed(BackendContract):
    """Through L2 right into operands, on the way back too."""

    backend = "cuda_fused"
    has_infinity_in_float32 = False
    head_dims = (9, 33, 64)


def check(
    function: str, B: int, T: int, NH: int, D: int, dtype: torch.dtype = torch.bfloat16, include_backward: bool = True
) -> None:
    """Every state, and gradient, against vanilla_fwbw."""
    sizes = {"batch_size": B, "sequence_size": T, "num_heads": NH, "head_dim": D}
    backends = {"backend": "cuda_fused", "backend_cmp": "vanilla_fwbw"}
    assert model_test(**sizes, **backends, function=function, dtype=dtype, device="cuda", include_backward=include_backward)


@pytest.mark.parametrize("head_dim", HEADS)
@pytest.mark.parametrize("function", CELLS)
def test_heads_of_several_sms(function: str, head_dim: int) -> None:
    check(function, 9, 11, 2, head_dim)


@pytest.mark.parametrize("head_dim", [17, 96, 129, 200, 256])
@pytest.mark.parametrize("function", CELLS)
@every_exchange
def test_head_dims(exchange: str, function: str, head_dim: int) -> None:
    check(function, 9, 11, 2, head_dim)
    if head_dim < 200:
        check(function, 9, 11, 2, head_dim, torch.float32)


@pytest.mark.parametrize("function", ["lstm", "gru", "slstm"])
@every_exchange
def test_long_sums_in_float32(exchange: str, function: str) -> None:
    """Over thousands of rows and steps, and hundreds of units, what tensor cores cut off would add up."""
    check(function, 16, 256, 4, 256, torch.float32)


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
@pytest.mark.parametrize("function", CELLS)
def test_clusters_of_every_size(function: str, cluster: int, columns: int) -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters need compute capability 9.0")
    if function == "slstm" and columns == 4:
        pytest.skip("its states take too many registers for 32 rows")
    with forced(exchange="clusters", cluster=cluster, columns=columns):
        check(function, 37, 29, 2, 200)


@pytest.mark.parametrize("columns", [1, 2])
@pytest.mark.parametrize("function", CELLS)
def test_mail_for_more_rows_forward(function: str, columns: int) -> None:
    with forced(exchange="mailed", columns=columns):
        check(function, 37, 29, 2, 200, include_backward=False)


@pytest.mark.parametrize("batch_size", [1, 7, 8, 9, 16, 17, 300])
@pytest.mark.parametrize("function", ["lstm", "gru"])
@every_exchange
def test_batch_sizes(exchange: str, function: str, batch_size: int) -> None:
    check(function, batch_size, 7, 3, 64)


@pytest.mark.parametrize("sequence_size", [1, 2, 3, 1000])
@every_exchange
def test_sequence_sizes(exchange: str, sequence_size: int) -> None:
    check("lstm", 4, sequence_size, 2, 64)


def step_of_training(inputs: list[Tensor], function: str) -> list[Tensor]:
    """Outputs and gradients."""
    inputs = [x.detach().requires_grad_() for x in inputs]  # no node of another call's graph, which may have another stream
    out, last = flashrnn(*inputs, function=function, backend="cuda_fused")
    return [out, last, *torch.autograd.grad(out.float().sum() + last.float().sum(), inputs)]


def a_problem(function: str, head_dim: int, batch_size: int = 17, sequence_size: int = 50) -> list[Tensor]:
    """Wx, R, b, states."""
    Wx, states, R, b = create_inputs(batch_size, sequence_size, 2, head_dim, function, True, torch.bfloat16, "cuda")
    return [Wx, R, b, states]


@pytest.mark.parametrize("function", CELLS)
@every_exchange
def test_fifty_runs_are_equal_to_the_bit(exchange: str, function: str) -> None:
    inputs = a_problem(function, 128)
    first = step_of_training(inputs, function)
    for _ in range(49):
        assert all(torch.equal(x, y) for x, y in zip(first, step_of_training(inputs, function)))


@every_exchange
def test_a_nan_arrives_whatever_its_bits(exchange: str) -> None:
    """Those of an empty place in a mailbox, too."""
    Wx, R, b, states = (x.detach() for x in a_problem("gru", 64, 3, 4))
    strange = torch.tensor(-1, dtype=torch.int32, device="cuda").view(torch.float32)
    states = states.float()
    states[0, 1, 0, 5] = strange
    out, _ = flashrnn(Wx, R, b, states, function="gru", backend="cuda_fused")
    assert out[0, 1, :, 0].isnan().all() and not out[0, [0, 2]].isnan().any()
    out, _ = flashrnn(Wx.float(), R.float(), b.float(), states, function="gru", backend="cuda_fused")
    assert out[0, 1, :, 0].isnan().all() and not out[0, [0, 2]].isnan().any()


SPIN = """extern "C" __global__ void spin(long long clocks) {
  extern __shared__ char memory[];
  const long long start = clock64();
  while (clock64() - start < clocks) memory[0] = 1;
}
"""


def occupy_half_of_the_gpu(milliseconds: float) -> None:
    """CTAs that leave no room beside them, on half of the SMs, on the current stream."""
    shared_bytes, clocks = device(0).shared_bytes, int(milliseconds * 1.7e6)
    kernel = loaded(Kernel("spin", "spin", SPIN), 0, shared_bytes)
    kernel.launch((device(0).multiprocessors // 2,), 32, bytes(ctypes.c_longlong(clocks)))


@every_exchange
def test_beside_a_kernel_on_half_of_the_gpu(exchange: str) -> None:
    inputs = a_problem("lstm", 256, 64)
    expected = step_of_training(inputs, "lstm")
    other = torch.cuda.Stream()
    with torch.cuda.stream(other):
        for _ in range(5):
            occupy_half_of_the_gpu(5)
    found = step_of_training(inputs, "lstm")
    torch.cuda.synchronize()
    assert all(torch.equal(x, y) for x, y in zip(expected, found))


@every_exchange
def test_two_calls_on_two_streams(exchange: str) -> None:
    problems = [a_problem("lstm", 256, 64), a_problem("lstm", 256, 40)]
    expected = [step_of_training(inputs, "lstm") for inputs in problems]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in problems]
    found: list[list[Tensor]] = [[], []]
    for _ in range(20):
        for i, (inputs, stream) in enumerate(zip(problems, streams)):
            with torch.cuda.stream(stream):
                found[i] = step_of_training(inputs, "lstm")
    torch.cuda.synchronize()
    for one, other in zip(expected, found):
        assert all(torch.equal(x, y) for x, y in zip(one, other))


@every_exchange
def test_ten_thousand_calls(exchange: str) -> None:
    Wx, R, b, states = (x.detach() for x in a_problem("elman", 64, 8, 3))
    expected, _ = flashrnn(Wx, R, b, states, function="elman", backend="cuda_fused")
    for _ in range(10_000):
        found, _ = flashrnn(Wx, R, b, states, function="elman", backend="cuda_fused")
    assert torch.equal(expected, found)
