"""Which compiler is taken, and what is said where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from compile_helpers import HAS_NVCC, TINY, needs_nvrtc
from flashrnn import BackendUnavailable, ConfigError
from flashrnn_cuda.compile import compiler, load_cubin, nvrtc
from flashrnn_cuda.compile.compiler import can_compile, the_compiler

pytestmark = pytest.mark.usefixtures("folder")


@needs_nvrtc
def test_auto_takes_nvrtc() -> None:
    assert the_compiler().name.startswith("nvrtc") and can_compile()


def fail_to_open() -> None:
    raise OSError("no libnvrtc here")


def hide(monkeypatch: pytest.MonkeyPatch, nvcc_too: bool) -> None:
    monkeypatch.setattr(nvrtc, "open_library", fail_to_open)
    if nvcc_too:
        monkeypatch.setattr(compiler, "nvcc_path", lambda: None)


@pytest.mark.skipif(not HAS_NVCC, reason="needs a CUDA toolkit")
def test_auto_takes_nvcc_where_there_is_no_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, nvcc_too=False)
    assert the_compiler().name.startswith("nvcc") and can_compile()


def test_no_compiler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    hide(monkeypatch, nvcc_too=True)
    assert not can_compile()
    with pytest.raises(BackendUnavailable) as caught:
        the_compiler()
    reason = str(caught.value)
    assert reason.endswith(".") and "\n" not in reason
    for part in ("no libnvrtc here", "pip install nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc for CUDA 13", "CUDA_HOME"):
        assert part in reason
    with pytest.raises(BackendUnavailable) as caught:
        load_cubin(TINY, (9, 0))
    assert str(caught.value) == f"{reason[:-1]}, and tiny float32 for sm_90a was not built ahead of time."


@pytest.mark.parametrize(("choice", "part"), [("nvrtc", "nvidia-cuda-nvrtc-cu12"), ("nvcc", "CUDA_HOME")])
def test_a_named_compiler_never_becomes_the_other(monkeypatch: pytest.MonkeyPatch, choice: str, part: str) -> None:
    monkeypatch.setenv(compiler.VARIABLE, choice)
    hide(monkeypatch, nvcc_too=choice == "nvcc")
    assert not can_compile()
    with pytest.raises(BackendUnavailable, match=part):
        the_compiler()


@pytest.mark.parametrize("choice", ["clang", "NVRTC", "nvcc ", "nvrtc,nvcc"])
def test_an_unknown_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(compiler.VARIABLE, choice)
    for call in (can_compile, the_compiler, lambda: load_cubin(TINY, (9, 0))):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == f"FLASHRNN_CUDA_COMPILER: expected one of auto, nvrtc, nvcc, got {choice!r}."


@needs_nvrtc
def test_an_empty_choice_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiler.VARIABLE, "")
    assert the_compiler().name.startswith("nvrtc")


def test_an_nvcc_that_does_not_work_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setenv(compiler.VARIABLE, "nvcc")
    with pytest.raises(BackendUnavailable, match="nvcc does not work"):
        the_compiler()


def test_the_search_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    monkeypatch.setattr(nvrtc, "open_library", lambda: searches.append(1) or fail_to_open())
    monkeypatch.setattr(compiler, "nvcc_path", lambda: None)
    assert not can_compile() and not can_compile() and len(searches) == 1


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
