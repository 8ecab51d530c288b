"""python -m flashrnn_cuda build and clean, with kernels of the test's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from compile_helpers import BROKEN, TINY, Counting, entry_files, load, needs_nvrtc, start_cold, use
from flashrnn_cuda import __main__ as command
from flashrnn_cuda.compile import Kernel, cache
from flashrnn_cuda.device import Device

OTHER = Kernel("other", "fill", TINY.text + "\n")


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the command asked the catalogue for."""
    start_cold(tmp_path, monkeypatch)
    monkeypatch.setenv("TQDM_DISABLE", "1")
    found: list[Any] = []

    def kernels_for(*question: Any) -> list[Kernel]:
        found.append(question)
        return [TINY, OTHER]

    monkeypatch.setattr(command, "kernels_for", kernels_for)
    return found


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["flashrnn_cuda", *words])
    return command.main()


def names(architectures: Sequence[Any]) -> list[str]:
    return [architecture.name for architecture in architectures]


def test_build_asks_for_what_is_named(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counting = Counting()
    use(counting, monkeypatch)
    words = "build --function lstm gru --head-dim 64 128 --dtype bfloat16 float32 --backend cuda_fused --arch 8.0;9.0a"
    assert run(monkeypatch, *words.split(), "--output", str(tmp_path / "out")) == 0
    for question, name in zip(asked, ("A100", "H200")):
        *what, devices = question
        assert what == [["lstm", "gru"], [64, 128], [torch.bfloat16, torch.float32], ["cuda_fused"]]
        assert devices[0].name == name
    assert len(asked) == 2 and len(counting.jobs) == 4 and len(entry_files(tmp_path / "out")) == 4
    output = capsys.readouterr().out
    assert "4 kernels" in output and str(tmp_path / "out") in output


@needs_nvrtc
def test_build_then_clean(asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert run(monkeypatch, "build", "--head-dim", "64", "--arch", "8.0") == 0
    assert "2 of them compiled now" in capsys.readouterr().out
    assert len(entry_files(cache.wanted_folder())) == 2
    assert run(monkeypatch, "clean") == 0
    assert "removed 2 kernels" in capsys.readouterr().out
    assert entry_files(cache.wanted_folder()) == []


@needs_nvrtc
def test_an_error_is_a_line_and_a_status(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "kernels_for", lambda *_: [BROKEN, TINY])
    assert run(monkeypatch, "build", "--head-dim", "64", "--arch", "8.0") == 1
    assert "cannot compile broken bfloat16 D=64 for sm_80" in capsys.readouterr().err
    assert len(entry_files(cache.wanted_folder())) == 1
    assert run(monkeypatch, "build", "--head-dim", "64", "--arch", "sm_80") == 1
    assert "error: --arch: expected a list such as" in capsys.readouterr().err
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "sm_80")
    assert run(monkeypatch, "build", "--head-dim", "64") == 1
    assert "error: TORCH_CUDA_ARCH_LIST: expected a list such as" in capsys.readouterr().err


def test_without_a_list_it_is_for_the_gpu_that_is_there(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Device("RTX 3060", (8, 6), 28, 99 * 1024)
    monkeypatch.setattr(command, "devices_here", lambda: [here])
    use(Counting(), monkeypatch)
    assert run(monkeypatch, "build", "--head-dim", "64") == 0
    ((*_, devices),) = asked
    assert here in devices and "for sm_86 in" in capsys.readouterr().out
    load(TINY, (8, 6))
    assert capsys.readouterr().err == ""  # nothing is compiled now


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("number", ["0", "-3", "many"])
def test_a_head_dim_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "build", "--head-dim", number)
    assert "--head-dim" in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
def test_what_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    use(Counting(), monkeypatch)
    words = "build --function lstm --head-dim 64 4000 --backend cuda_fused --arch 9.0a"
    assert run(monkeypatch, *words.split()) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "sm_90a" in line]
    assert "head_dim 4000" in line and "backend='cuda'" in line


@pytest.mark.usefixtures("asked")
def test_a_folder_that_cannot_be_made_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    use(Counting(), monkeypatch)
    (tmp_path / "file").write_text("")
    assert run(monkeypatch, "build", "--head-dim", "64", "--arch", "8.0", "--output", str(tmp_path / "file" / "out")) == 1
    assert "error: " in capsys.readouterr().err


@pytest.mark.usefixtures("asked")
@pytest.mark.filterwarnings("ignore:The kernel cache")
def test_a_cache_that_keeps_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    use(Counting(), monkeypatch)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FLASHRNN_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert run(monkeypatch, "build", "--head-dim", "64", "--arch", "8.0") == 1
    assert "nothing was kept" in capsys.readouterr().err
