"""What all tests of flashrnn-cuda share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from compile_helpers import Counting, forget, start_cold, use
from flashrnn_cuda.compile import compiler

VARIABLES = ("TORCH_CUDA_ARCH_LIST", "FLASHRNN_CUDA_COMPILER", "FLASHRNN_EXTRA_INCLUDE_PATHS", "FLASHRNN_CACHE_DIR")


@pytest.fixture(autouse=True)
def _nothing_set_and_nothing_left(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests start with none of the variables set and leave nothing behind; on a GPU they do use the cache."""
    on_gpu = request.node.get_closest_marker("gpu") is not None
    for variable in VARIABLES:
        if not on_gpu or "CACHE" not in variable:
            monkeypatch.delenv(variable, raising=False)
    yield
    if not on_gpu:
        forget()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a cold cache; see `start_cold`."""
    return start_cold(tmp_path, monkeypatch)


@pytest.fixture
def counting(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The compiler of a test that compiles nothing."""
    found = Counting()
    use(found, monkeypatch)
    return found


@pytest.fixture
def found(folder: Path, choice: str, monkeypatch: pytest.MonkeyPatch) -> compiler.Compiler:
    """The compiler that a test with `both_compilers` is about."""
    monkeypatch.setenv(compiler.VARIABLE, choice)
    return compiler.the_compiler()
