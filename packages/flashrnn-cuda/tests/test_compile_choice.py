"""Which compiler is taken, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compile_helpers import (
    HAS_NVCC,
    TINY,
    needs_nvrtc,
    start_cold,
    use,
)
from flashrnn import BackendUnavailable, ConfigError
from flashrnn_cuda.compile import compiler, load_cubin, nvrtc
from flashrnn_cuda.compile.compiler import the_compiler, why_not


@pytest.fixture(autouse=True)
def _cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_cold(tmp_path, monkeypatch)


@needs_nvrtc
def test_auto_takes_nvrtc() -> None:
    assert the_compiler().name.startswith("nvrtc") and why_not() is None


def fail_to_open() -> None:
    raise OSError("no libnvrtc here")


def hide(monkeypatch: pytest.MonkeyPatch, nvcc_too: bool) -> None:
    monkeypatch.setattr(nvrtc, "open_library", fail_to_open)
    if nvcc_too:
        monkeypatch.setattr(compiler, "nvcc_path", lambda: None)


@pytest.mark.skipif(not HAS_NVCC, reason="needs a CUDA toolkit")
def test_auto_takes_nvcc_where_there_is_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, nvcc_too=False)
    assert the_compiler().name.startswith("nvcc") and why_not() is None


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, nvcc_too=True)
    reason = why_not()
    assert reason is not None and reason.endswith(".") and "\n" not in reason
    for part in ("no libnvrtc here", "pip install nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc for CUDA 13", "CUDA_HOME"):
        assert part in reason
    with pytest.raises(BackendUnavailable) as caught:
        load_cubin(TINY, (9, 0))
    assert str(caught.value) == reason


@pytest.mark.parametrize(("choice", "part"), [("nvrtc", "nvidia-cuda-nvrtc-cu12"), ("nvcc", "CUDA_HOME")])
def test_a_named_compiler_never_becomes_the_other(monkeypatch: pytest.MonkeyPatch, choice: str, part: str) -> None:
    monkeypatch.setenv(compiler.VARIABLE, choice)
    hide(monkeypatch, nvcc_too=choice == "nvcc")
    assert part in (why_not() or "")
    with pytest.raises(BackendUnavailable, match=part):
        the_compiler()


def test_an_unknown_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.VARIABLE, "clang")
    message = "FLASHRNN_CUDA_COMPILER: expected one of auto, nvrtc, nvcc, got 'clang'."
    assert why_not() == message
    with pytest.raises(ConfigError) as caught:
        load_cubin(TINY, (9, 0))
    assert str(caught.value) == message


def test_an_nvcc_that_does_not_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv(compiler.VARIABLE, "nvcc")
    assert "nvcc does not work" in (why_not() or "")


def test_the_search_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    monkeypatch.setattr(nvrtc, "open_library", lambda: searches.append(1) or fail_to_open())
    monkeypatch.setattr(compiler, "nvcc_path", lambda: None)
    assert why_not() == why_not() and len(searches) == 1


def test_what_was_shipped_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use("none here", monkeypatch)
    assert why_not() == "There is no compiler for CUDA kernels: none here."
    (tmp_path / "prebuilt").mkdir()
    assert why_not() is None


@needs_nvrtc
def test_importing_loads_no_library() -> None:
    script = """
import torch  # which loads one itself where it was built for CUDA
loaded = lambda: "libnvrtc" in open("/proc/self/maps").read()
before = loaded()
from flashrnn_cuda.compile import nvrtc, nvcc, compiler
after = loaded()
nvrtc.Nvrtc()
print(before == after, loaded())
"""
    if not os.path.exists("/proc/self/maps"):
        pytest.skip("needs /proc")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
