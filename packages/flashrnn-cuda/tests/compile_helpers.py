"""What the tests of the compilation share: a cold cache, kernels of their own, and a compiler that only counts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path

import pytest

from flashrnn_cuda import compile as compilation
from flashrnn_cuda.compile import Compiled, Kernel, cache, compiler, load_cubin, nvcc, sources
from flashrnn_cuda.compile.kernel import Job

VARIABLES = (
    *("TORCH_CUDA_ARCH_LIST", "FLASHRNN_EXTRA_INCLUDE_PATHS", "FLASHRNN_CUDA_COMPILER", "FLASHRNN_CACHE_DIR"),
    *("XDG_CACHE_HOME", "CUDA_HOME", "CUDA_PATH", *nvcc.OPTIONS),
)
AWKWARD = "a b;'c\"d$HOME`ls`&e"
"""The name of a folder that a shell would make something else of."""

HEADER = "#pragma once\nconstexpr float VALUE = 3.f;\n"
TEXT = """#include "value.cuh"
extern "C" __global__ void fill(float* x) { x[threadIdx.x] = VALUE; }
"""
TINY = Kernel("tiny float32", "fill", TEXT)
BROKEN = Kernel("broken bfloat16 D=64", "fill", TEXT.replace("= VALUE", "= NO_SUCH_VALUE"))

HAS_NVRTC = any((d.metadata["Name"] or "").startswith("nvidia-cuda-nvrtc") for d in distributions() if d.metadata)
HAS_NVCC = bool(shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin"))
needs_nvrtc = pytest.mark.skipif(not HAS_NVRTC, reason="needs pip install nvidia-cuda-nvrtc")
needs_nvcc = pytest.mark.skipif(not HAS_NVCC, reason="needs a CUDA toolkit")
both_compilers = pytest.mark.parametrize(
    "choice", [pytest.param("nvrtc", marks=needs_nvrtc), pytest.param("nvcc", marks=needs_nvcc)]
)


def start_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing set, nothing compiled, nothing remembered, one header of our own; returns the folder of the cache."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache"
    monkeypatch.setenv("FLASHRNN_CACHE_DIR", str(folder))
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "value.cuh").write_text(HEADER)
    monkeypatch.setattr(sources, "KERNELS", kernels)
    monkeypatch.setattr(cache, "PREBUILT", tmp_path / "prebuilt")
    forget()
    return folder


def forget() -> None:
    """What a new process would not know."""
    compilation._load.cache_clear()
    sources._fingerprint.cache_clear()
    compiler._find.cache_clear()
    cache.fallback.clear()


def load(kernel: Kernel = TINY, capability: tuple[int, int] = (9, 0)) -> bytes:
    """What a new process would load."""
    compilation._load.cache_clear()
    sources._fingerprint.cache_clear()
    return load_cubin(kernel, capability)


class Counting:
    """A compiler whose cubins spell out what they were made from, and that counts."""

    def __init__(self, name: str = "counting 1.0", flags: Sequence[str] = ("-O3",)) -> None:
        self.name, self.more = name, list(flags)
        self.jobs: list[Job] = []

    def flags(self, architecture: str) -> list[str]:
        """Those of the architecture and more."""
        return [f"--for={architecture}", *self.more]

    def compile(self, kernel: Kernel, architecture: str) -> Compiled:
        """Count the job; the result ends with the count."""
        self.jobs.append((kernel, architecture))
        return Compiled(f"{kernel.text} {architecture} {self.name} {len(self.jobs)}".encode() * 50, "Used 8 registers")

    def compile_each(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Compiled]]:
        """One after the other."""
        for job in jobs:
            yield job, self.compile(*job)


def use(found: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make it the compiler that is found, or the reason why none is."""
    monkeypatch.setattr(compiler, "CHOICES", dict.fromkeys(compiler.CHOICES, (lambda: found,)))
    compiler._find.cache_clear()
    compilation._load.cache_clear()


def entry_files(folder: Path) -> list[Path]:
    """The entries of a cache folder."""
    return sorted(folder.glob("*.cubin"))
