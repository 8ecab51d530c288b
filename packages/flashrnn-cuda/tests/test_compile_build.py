"""Kernels built ahead of time, and what a user is shown."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from compile_helpers import HEADER, TINY, Counting, entry_files, load, use
from flashrnn import BackendUnavailable
from flashrnn_cuda import compile as compilation
from flashrnn_cuda.compile import Kernel, build, cache
from flashrnn_cuda.compile.architectures import Architecture

# ------------------------------------------------------------------------------------------------------------- ahead of time

SM_80, SM_90 = Architecture((8, 0)), Architecture((9, 0))


def test_build_fills_the_cache(folder: Path, counting: Counting) -> None:
    kernels = [TINY, Kernel("other", "fill", TINY.text + "\n")]
    seen: list[str] = []
    assert build(kernels, [SM_80, SM_90], progress=lambda kernel: seen.append(kernel.name)) == 4
    assert sorted(seen) == ["other", "other", "tiny float32", "tiny float32"] and len(entry_files(folder)) == 4
    assert build(kernels, [SM_80, SM_90], progress=lambda kernel: seen.append(kernel.name)) == 0 and len(seen) == 8
    load(TINY, (8, 0))
    assert len(counting.jobs) == 4


@pytest.mark.parametrize("place", ["in the package", "as the cache"])
def test_what_was_built_for_shipping_needs_no_compiler(
    tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    shipped = tmp_path / "prebuilt" if place == "in the package" else tmp_path / "shipped"
    build([TINY], [SM_80, SM_90], shipped)
    use("none here", monkeypatch)
    if place == "as the cache":
        monkeypatch.setenv(cache.VARIABLE, str(shipped))
    assert b" sm_80 " in load(TINY, (8, 0)) and b" sm_80 " in load(TINY, (8, 6))
    assert b" sm_90 " in load(TINY, (9, 0))
    for kernel, capability in ((TINY, (10, 0)), (Kernel("new", "fill", "// new"), (8, 0))):
        with pytest.raises(BackendUnavailable, match="There is no compiler for CUDA kernels: none here"):
            load(kernel, capability)


def test_a_list_is_obeyed_by_what_was_shipped(tmp_path: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    build([TINY], [SM_80], tmp_path / "prebuilt")
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.6")
    assert b" sm_86 " in load(TINY, (8, 6))


def test_what_was_shipped_for_other_sources_is_not_taken(tmp_path: Path, counting: Counting) -> None:
    build([TINY], [SM_80], tmp_path / "prebuilt")
    (tmp_path / "kernels" / "value.cuh").write_text(HEADER + "// newer\n")
    load(TINY, (8, 0))
    assert len(counting.jobs) == 2


def test_build_into_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path, counting: Counting) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        build([TINY], [SM_80], tmp_path / "file")
    assert counting.jobs == []


# -------------------------------------------------------------------------------------------------------------- what is said


def test_one_line_is_shown_where_logging_is_not_set_up(
    counting: Counting, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    load(), load()
    output = capsys.readouterr()
    assert output.out == "" and len(output.err.splitlines()) == 1
    assert output.err.startswith("flashrnn: compiling tiny float32 for sm_90a with counting 1.0")
    assert compilation.logger.handlers == [] and logging.getLogger().handlers == []


def test_where_logging_is_set_up_it_decides(
    counting: Counting, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    load()
    assert caplog.messages == []
    with caplog.at_level(logging.DEBUG, "flashrnn_cuda"):
        load(TINY, (8, 0))
    levels = [record.levelno for record in caplog.records]
    assert levels == [logging.INFO, logging.DEBUG]
    assert caplog.messages[0].startswith("compiling tiny float32 for sm_80")
    assert "8 registers, 0 bytes spilled" in caplog.messages[1]
    assert capsys.readouterr().err == ""


def test_a_level_silences_it(
    counting: Counting, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    compilation.logger.setLevel(logging.WARNING)
    try:
        load()
    finally:
        compilation.logger.setLevel(logging.NOTSET)
    assert capsys.readouterr().err == ""
