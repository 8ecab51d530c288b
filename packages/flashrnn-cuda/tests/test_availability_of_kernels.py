"""Without a compiler it is known beforehand whether a call finds the kernels it asks for: those that were built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Callable, Optional

import pytest
import torch

from compile_helpers import Counting, entry_files, start_cold, use
from flashrnn import BackendUnavailable, FlashRNNConfig, discovery, flashrnn
from flashrnn.cells import CELLS
from flashrnn.problem import Problem
from flashrnn_cuda import CUDA, CUDA_FUSED, alternating, availability, fused, gradients, recompute
from flashrnn_cuda.compile import Kernel, build, cache
from flashrnn_cuda.compile.architectures import parse
from flashrnn_cuda.selection import DEVICES, kernels_for
from flashrnn_testing import create_inputs

BACKENDS = [pytest.param(backend, id=backend.name) for backend in (CUDA_FUSED, CUDA)]
H200 = next(device for device in DEVICES if device.name == "H200")
(SM_90A,) = parse("9.0a")


@pytest.fixture(autouse=True)
def _an_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that looks as if it had one, with nothing built."""
    start_cold(tmp_path, monkeypatch)
    for module in (availability, fused, gradients):
        monkeypatch.setattr(module, "device", lambda index: H200)


def problem(head_dim: int = 64, **options: Any) -> Problem:
    config = FlashRNNConfig(dtype=torch.bfloat16, **options)
    return Problem(config, 2, 3, 1, head_dim, torch.device("cuda", 0), torch.bfloat16, requires_grad=True)


def ship(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any) -> Path:
    """Build for lstm and head_dim 64, then take the compiler away; returns the folder."""
    folder = tmp_path / ("prebuilt" if place == "in the package" else "shipped")
    use(Counting(), monkeypatch)
    build(kernels_for(["lstm"], [64], [torch.bfloat16], [backend.name], [H200]), [SM_90A], folder)
    use("none here", monkeypatch)
    if place == "as the cache":
        monkeypatch.setenv(cache.VARIABLE, str(folder))
    return folder


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_compiler_and_without_kernels(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    use("none here", monkeypatch)
    reason = backend.why_not(problem())
    assert reason.startswith("There is no compiler for CUDA kernels: none here, and ") and "\n" not in reason
    command = "--function lstm --head-dim 64 --dtype bfloat16 --backend {} --arch 9.0a --output FOLDER"
    assert f"`python -m flashrnn_cuda build {command.format(backend.name)}` builds it." in reason


@pytest.mark.parametrize("place", ["in the package", "as the cache"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_was_shipped_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any, place: str
) -> None:
    ship(place, tmp_path, monkeypatch, backend)
    clipping = {"forward_clipval": 1.0, "gradient_recurrent_clipval": 1.0, "recompute": True}
    assert backend.why_not(problem()) is None and backend.why_not(problem(**clipping)) is None
    monkeypatch.setattr("flashrnn_cuda.compile.entries.read", lambda *_: pytest.fail("it is in memory"))
    assert backend.why_not(problem()) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_kernel_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    folder = ship("in the package", tmp_path, monkeypatch, backend)
    for entry in entry_files(folder):
        if b"Backward" in entry.read_bytes():
            entry.unlink()
    reason = backend.why_not(problem())
    assert "backward lstm bfloat16" in reason and "for sm_90a was not built ahead of time" in reason
    assert "forward" not in reason


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_function_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    ship("in the package", tmp_path, monkeypatch, backend)
    assert "gru" in backend.why_not(problem(function="gru")) and backend.why_not(problem()) is None
    use(Counting(), monkeypatch)
    assert backend.why_not(problem(function="gru")) is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_a_compiler_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch, backend: Any) -> None:
    counting = Counting()
    use(counting, monkeypatch)
    monkeypatch.setattr(availability, "load_cubin", lambda *_: pytest.fail("on the path of every call"))
    assert backend.why_not(problem()) is None and counting.jobs == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_variables_and_the_cache_say_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    monkeypatch.setenv("FLASHRNN_CUDA_COMPILER", "clang")
    assert backend.why_not(problem()) == "FLASHRNN_CUDA_COMPILER: expected one of auto, nvrtc, nvcc, got 'clang'."
    monkeypatch.delenv("FLASHRNN_CUDA_COMPILER")
    use("none here", monkeypatch)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    assert "can be written by other users" in backend.why_not(problem())


def test_sizes_that_build_nothing() -> None:
    """As long as the GPU takes all at a time; and but for tiles of 8, 16 and 32 batch rows in the backend cuda."""

    def kernels(module: Any, batch_size: int, sequence_size: int, num_heads: int) -> set[Kernel]:
        sizes = {"batch_size": batch_size, "sequence_size": sequence_size, "num_heads": num_heads}
        return set(module.kernels(replace(problem(), **sizes)))

    for module, batch_sizes in ((fused, (1, 8, 9, 64)), (alternating, (17, 64, 300))):
        found = [kernels(module, B, T, NH) for B, T, NH in product(batch_sizes, (1, 3, 5000), (1, 3, 12))]
        assert all(x == found[0] for x in found)


# ------------------------------------------------------------------------------------- a call, what is said, what is built

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clipped": {"forward_clipval": 0.5, "gradient_recurrent_clipval": 0.5},
    "cut": {"gradient_recurrent_cut": True},
    "recomputed": {"recompute": True},
}


class Recorded:
    """A kernel that does nothing when it is launched."""

    def __init__(self, kernel: Kernel, seen: set[Kernel], room: int = 132) -> None:
        seen.add(kernel)
        self.room = room

    def launch(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def resident(self, threads: int) -> int:
        """As many as are said to be."""
        return self.room


def stand_in(monkeypatch: pytest.MonkeyPatch, load: Callable[[Kernel], Recorded], why_not_built: Callable[..., Any]) -> None:
    """Calls on the CPU run the kernels that `load` makes."""
    for module in (fused, alternating):
        monkeypatch.setattr(module, "why_not_cuda", lambda *_: None)
        monkeypatch.setattr(module, "why_not_built", why_not_built)
    for module in (fused, alternating, gradients, recompute):
        monkeypatch.setattr(module, "function", lambda kernel, *_: load(kernel))
        monkeypatch.setattr(module, "index_of", lambda device: 0)
    monkeypatch.setattr(gradients, "OUT_DTYPE", False)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("backend", ["cuda_fused", "cuda"])
def test_calls_ask_for_what_why_not_asks_for_and_build_builds(
    monkeypatch: pytest.MonkeyPatch, backend: str, function: str, option: str
) -> None:
    asked: set[Kernel] = set()
    offered: set[Kernel] = set()

    def offer(name: str, problem: Problem, kernels: Iterable[Kernel]) -> Optional[str]:
        offered.update(kernels)
        return None

    stand_in(monkeypatch, lambda kernel: Recorded(kernel, asked), offer)
    fused.layout_of.cache_clear()
    discovery.choose.cache_clear()
    config = FlashRNNConfig(function=function, backend=backend, **OPTIONS[option])
    cases = list(product((torch.bfloat16, torch.float32), (32, 33), (1, 20), (False, True)))
    for dtype, head_dim, batch_size, masked in cases:
        Wx, states, R, b = create_inputs(batch_size, 3, 2, head_dim, function, True, dtype, "cpu")
        lengths = torch.full((batch_size,), 2) if masked else None
        with torch.no_grad():
            flashrnn(Wx, R, b, states, config=config, lengths=lengths)
        out, last = flashrnn(Wx, R, b, states, config=config, lengths=lengths)
        for x in (out, last):
            torch.autograd.grad(x.sum(), (Wx, R, b, states), retain_graph=True)
    built = kernels_for([function], [32, 33], [torch.bfloat16, torch.float32], [backend], [H200])
    assert len(asked) >= 8 and asked <= offered <= set(built)
    fused.layout_of.cache_clear()
    discovery.choose.cache_clear()


def test_a_layout_that_there_is_not_cannot_be_forced() -> None:
    with pytest.raises(BackendUnavailable, match=r"^no room$"):
        fused.settled("no room")


@pytest.mark.parametrize(
    ("room", "of_clusters", "expected"), [(132, 120, "Clusters<"), (132, 8, "Mailed<"), (4, 4, "room for 4")]
)
def test_where_clusters_find_no_room_a_grid_takes_their_place(
    monkeypatch: pytest.MonkeyPatch, room: int, of_clusters: int, expected: str
) -> None:
    """Which clusters a GPU has room for is known when the kernel is loaded, not when it is planned."""
    launched: list[str] = []

    class Loaded(Recorded):
        def __init__(self, kernel: Kernel) -> None:
            super().__init__(kernel, set(), of_clusters if "__cluster_dims__" in kernel.text else room)
            self.kernel = kernel

        def launch(self, *_: Any, **__: Any) -> None:
            launched.append(self.kernel.text)

    stand_in(monkeypatch, Loaded, lambda *_: None)
    discovery.choose.cache_clear()
    Wx, states, R, b = create_inputs(8, 3, 1, 256, "elman", True, torch.bfloat16, "cpu")
    with fused.forced(exchange="clusters"):
        if room < 8:
            with pytest.raises(RuntimeError, match=expected):
                flashrnn(Wx, R, b, states, function="elman", backend="cuda_fused")
        else:
            out, _ = flashrnn(Wx, R, b, states, function="elman", backend="cuda_fused")
            torch.autograd.grad(out.sum(), (Wx, R))
            (backward,) = [text for text in launched if "fused_backward_kernel" in text]
            assert f"Exchange = {expected}" in backward
    discovery.choose.cache_clear()
