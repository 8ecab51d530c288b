"""Where the CUDA backends cannot run they say why, in one sentence."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from flashrnn import BackendUnavailable, FlashRNNConfig, explain, flashrnn
from flashrnn.problem import Problem
from flashrnn_cuda import CUDA, CUDA_FUSED, availability
from flashrnn_cuda.driver import DriverError
from flashrnn_cuda.selection import DEVICES
from flashrnn_testing import create_inputs

BACKENDS = [pytest.param(backend, id=backend.name) for backend in (CUDA_FUSED, CUDA)]
H200 = next(device for device in DEVICES if device.name == "H200")


def problem(head_dim: int = 64, dtype: torch.dtype = torch.bfloat16, **options: Any) -> Problem:
    return Problem(FlashRNNConfig(dtype=dtype, **options), 2, 3, 1, head_dim, torch.device("cuda", 0), dtype)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that looks as if it had an H200."""
    monkeypatch.setattr(availability, "device", lambda index: H200)
    monkeypatch.setattr("flashrnn_cuda.fused.device", lambda index: H200)


@pytest.mark.parametrize(
    ("has_gpu", "todo"),
    [
        (True, "not on 'cpu': move tensors there with x.to('cuda')."),
        (False, "of which none is found; backend='vanilla_fwbw' computes on 'cpu'."),
    ],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_on_a_cpu_tensor(monkeypatch: pytest.MonkeyPatch, backend: Any, has_gpu: bool, todo: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    inputs = create_inputs(2, 3, 1, 4, "lstm", create_states=False, device="cpu")
    with pytest.raises(BackendUnavailable) as caught:
        flashrnn(*inputs, backend=backend.name)
    assert str(caught.value) == f"{backend.name} computes on NVIDIA GPUs, {todo}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_auto_leaves_them_out_on_a_cpu(backend: Any) -> None:
    told = explain(2, 3, 1, 4, "lstm", device="cpu")
    assert told.backend == "vanilla_fwbw" and "NVIDIA" in str(told.reasons[backend.name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_driver(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    def missing(index: int) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(availability, "device", missing)
    assert "no usable GPU 'cuda:0' on this machine: libcuda.so.1" in backend.why_not(problem())

    def broken(index: int) -> None:
        raise DriverError("CUDA driver: no CUDA-capable device is detected (code 100)")

    monkeypatch.setattr(availability, "device", broken)
    assert "no CUDA-capable device" in backend.why_not(problem())


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_an_old_gpu(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    monkeypatch.setattr(availability, "device", lambda index: replace(H200, name="Tesla V100", capability=(7, 0)))
    assert "needs compute capability 8.0 or newer, Tesla V100 has 7.0" in backend.why_not(problem())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("backend", BACKENDS)
def test_where_the_architecture_list_leaves_the_gpu_out(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;8.6")
    assert "TORCH_CUDA_ARCH_LIST" in backend.why_not(problem())


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("backend", BACKENDS)
def test_in_float64(backend: Any) -> None:
    assert "backend='vanilla'" in backend.why_not(problem(dtype=torch.float64))


@pytest.mark.usefixtures("gpu")
def test_a_head_too_large_for_the_chip_names_the_other_backend() -> None:
    reason = CUDA_FUSED.why_not(problem(head_dim=4096))
    assert reason is not None and "head_dim 4096" in reason and "backend='cuda'" in reason
    assert CUDA.why_not(problem(head_dim=768)) is None
    assert CUDA_FUSED.why_not(problem(head_dim=128)) is None


@pytest.mark.usefixtures("gpu")
def test_it_tells_its_plan_and_the_time_that_should_take() -> None:
    told = CUDA_FUSED.how(problem(head_dim=512))
    assert re.match(r"forward a cluster of 16 SMs a tile of 8 rows, about \d\.\d\d us a step, .* ms in all$", told)


@pytest.mark.gpu
def test_on_a_gpu_auto_takes_the_fused_kernel() -> None:
    assert explain(2, 3, 1, 64, "lstm", device="cuda", dtype="bfloat16").backend == "cuda_fused"
    assert explain(2, 3, 1, 4096, "lstm", device="cuda", dtype="bfloat16").backend == "cuda"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gpu_that_is_not_there(backend: Any) -> None:
    told = explain(2, 3, 1, 64, "lstm", backend=backend.name, device="cuda:99")
    assert told.backend is None and "no usable GPU 'cuda:99' on this machine" in str(told.reasons[backend.name])


def test_a_gpu_without_an_index_on_a_machine_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> int:
        raise RuntimeError("No CUDA GPUs are available")

    monkeypatch.setattr(torch.cuda, "current_device", no_gpu)
    told = explain(2, 3, 1, 64, "lstm", device="cuda", dtype="bfloat16")
    assert "no usable GPU 'cuda' on this machine: No CUDA GPUs are available" in str(told.reasons["cuda_fused"])
