"""Kernels are loaded into torch's context, whatever a thread does, and launched in no other."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from itertools import count
from typing import Any, Optional
from uuid import uuid4

import pytest
import torch
from torch import Tensor

from compile_helpers import Kernel
from flashrnn import flashrnn
from flashrnn_cuda import driver, launch
from flashrnn_cuda.driver import Attribute, DriverError, Function
from flashrnn_testing import create_inputs

GLOBAL, RELAXED = 0, 2
INVALID_IMAGE, INVALID_CONTEXT, INVALID_HANDLE, CAPTURE_UNSUPPORTED = 200, 201, 400, 900
TORCHS, ANOTHER = 0x1000, 0x2000


class FakeDriver:
    """What the driver does about contexts and graph capture, for one thread and one device."""

    def __init__(self) -> None:
        self.contexts: list[int] = []
        self.mode, self.is_capturing = GLOBAL, False
        self.handles, self.home = count(1), dict[int, int]()
        self.launched: list[tuple[int, int]] = []

    @property
    def current(self) -> Optional[int]:
        """The context on top."""
        return self.contexts[-1] if self.contexts else None

    def cuDeviceGet(self, handle: Any, index: int) -> int:
        handle._obj.value = index
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, handle: int) -> int:
        context._obj.value = TORCHS
        return 0

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.current
        return 0

    def cuCtxSetCurrent(self, context: int) -> int:
        self.contexts[-1:] = [context]
        return 0

    def cuCtxPushCurrent_v2(self, context: int) -> int:
        self.contexts.append(context)
        return 0

    def cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self.contexts.pop()
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuModuleLoadData(self, module: Any, cubin: bytes) -> int:
        if self.is_capturing and self.mode != RELAXED:
            return CAPTURE_UNSUPPORTED
        module._obj.value = next(self.handles)
        return INVALID_IMAGE if cubin == b"bad" else 0

    def cuModuleGetFunction(self, function: Any, module: Any, entry: bytes) -> int:
        function._obj.value = next(self.handles)
        self.home[function._obj.value] = self.current or 0
        return 0

    def cuFuncSetAttribute(self, function: Any, attribute: int, value: int) -> int:
        return 0 if self.home[function.value] == self.current else INVALID_HANDLE

    def cuOccupancyMaxActiveBlocksPerMultiprocessor(self, found: Any, function: Any, threads: int, shared: int) -> int:
        found._obj.value = 2
        return 0 if self.home[function.value] == self.current else INVALID_HANDLE

    def cuOccupancyMaxActiveClusters(self, found: Any, function: Any, config: Any) -> int:
        assert (config._obj.grid_x, config._obj.block_x, config._obj.shared_bytes) == (16, 32, 100_000)
        found._obj.value = 7
        return 0 if self.home[function.value] == self.current else INVALID_HANDLE

    def cuDeviceGetAttribute(self, value: Any, which: Any, handle: int) -> int:
        assert which == Attribute.MULTIPROCESSORS
        value._obj.value = 132
        return 0

    def cuLaunchKernel(self, function: Any, *_: Any) -> int:
        if self.current is None:
            return INVALID_CONTEXT
        if self.home[function.value] != self.current:
            return INVALID_HANDLE
        self.launched.append((function.value, self.current))
        return 0

    cuLaunchCooperativeKernel = cuLaunchKernel

    def cuGetErrorString(self, status: int, text: Any) -> int:
        text._obj.value = b"refused"
        return 0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    found = FakeDriver()
    driver.primary_context.cache_clear()
    monkeypatch.setattr(driver, "library", lambda: found)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    yield found
    driver.primary_context.cache_clear()


def load(cubin: bytes = b"cubin", cluster: int = 16) -> Function:
    return Function(cubin, "fill", 0, 100_000, cluster)


@pytest.mark.parametrize("before", [[], [TORCHS], [ANOTHER], [TORCHS, ANOTHER]])
def test_a_kernel_is_loaded_into_torchs_context_and_leaves_all_as_it_was(fake: FakeDriver, before: list[int]) -> None:
    fake.contexts = list(before)
    for cluster, resident in ((1, 2 * 132), (16, 7 * 16)):
        kernel = load(cluster=cluster)
        assert fake.home[kernel.handle.value] == TORCHS and kernel.resident(32) == resident
    assert fake.contexts == (before or [TORCHS]) and fake.mode == GLOBAL


@pytest.mark.parametrize("before", [[], [ANOTHER]])
def test_a_kernel_that_cannot_be_loaded_leaves_all_as_it_was(fake: FakeDriver, before: list[int]) -> None:
    fake.contexts = list(before)
    with pytest.raises(DriverError, match="code 200"):
        load(b"bad")
    assert fake.contexts == before and fake.mode == GLOBAL


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_thread_without_a_context_gets_torchs(fake: FakeDriver, cooperative: bool) -> None:
    load().launch((1,), 32, b"", cooperative)
    assert fake.contexts == [TORCHS] and len(fake.launched) == 1


def test_in_the_context_of_another_library_nothing_is_launched(fake: FakeDriver) -> None:
    fake.contexts = [TORCHS]
    kernel = load()
    kernel.launch((1,), 32, b"")
    fake.contexts.append(ANOTHER)
    with pytest.raises(DriverError, match="Another library has made a CUDA context of its own current") as caught:
        kernel.launch((1,), 32, b"")
    assert "cuda:0" in str(caught.value) and fake.contexts == [TORCHS, ANOTHER]
    fake.contexts.pop()
    kernel.launch((1,), 32, b"")
    assert [context for _, context in fake.launched] == [TORCHS, TORCHS]


def test_a_kernel_is_loaded_while_a_graph_is_captured(fake: FakeDriver) -> None:
    fake.contexts, fake.is_capturing = [TORCHS], True
    load().launch((1,), 32, b"")
    assert len(fake.launched) == 1 and fake.mode == GLOBAL


# ------------------------------------------------------------------------------------------------------------------ on a GPU


def fresh() -> Kernel:
    """A kernel that nobody has loaded."""
    text = 'extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 7; }'
    return Kernel("fill", "fill", f"{text}  // {uuid4()}\n")


def fill(x: Tensor, kernel: Kernel) -> None:
    launch.function(kernel, 0, 0).launch((1,), x.numel(), bytes(ctypes.c_void_p(x.data_ptr())))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_the_first_launch_of_a_kernel_is_captured(mode: str) -> None:
    x, graph = torch.zeros(32, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=mode):
        fill(x, fresh())
    assert x.eq(0).all()
    graph.replay()
    assert x.eq(7).all()


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda_fused", "cuda"])
def test_the_first_call_after_loading_nothing_is_captured(backend: str) -> None:
    Wx, states, R, b = create_inputs(4, 5, 2, 64, "lstm", True, torch.bfloat16, "cuda")
    leaves = [x.detach().requires_grad_() for x in (Wx, R, b, states)]

    def step() -> list[Tensor]:
        out, last = flashrnn(*leaves, function="lstm", backend=backend)
        return [out, *torch.autograd.grad(out.float().sum() + last.float().sum(), leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = [x.detach().clone() for x in step()]
    torch.cuda.current_stream().wait_stream(side)
    launch.function.cache_clear()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    graph.replay()
    assert all(torch.equal(x, y) for x, y in zip(expected, captured))


@pytest.mark.gpu
def test_a_context_of_another_library_is_noticed() -> None:
    x, kernel, context, library = torch.zeros(32, device="cuda"), fresh(), ctypes.c_void_p(), driver.library()
    driver.check(library.cuCtxCreate_v2(ctypes.byref(context), 0, driver.device(0)))
    try:
        with pytest.raises(DriverError, match="Another library"):
            fill(x, kernel)
    finally:
        driver.check(library.cuCtxDestroy_v2(context))
    fill(x, kernel)
    assert x.eq(7).all()
