"""Many processes on one cold cache, one of them killed while it writes."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from compile_helpers import TEXT, TINY, entry_files, needs_nvrtc, start_cold
from flashrnn_cuda.compile import Kernel, build, cache, load_cubin, nvrtc
from flashrnn_cuda.compile.architectures import Architecture

PROCESSES = """
import hashlib, os, pathlib, sys, time
from flashrnn_cuda.compile import Kernel, load_cubin, sources

kernels, text, count = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sources.KERNELS = kernels

def stop_half_way(source, target):
    os.truncate(source, os.path.getsize(source) // 2)
    os.write(is_half_way, b"x" * count)
    os.write(1, f"half way {os.getpid()}\\n".encode())
    time.sleep(600)

def run(is_victim):
    if is_victim:
        os.replace = stop_half_way
    else:
        os.read(wait_for_it, 1)
    found = hashlib.sha256(load_cubin(Kernel("tiny", "fill", text), (9, 0))).hexdigest()
    os.write(1, f"{found}\\n".encode())  # at once: the lines of several processes must not mix

wait_for_it, is_half_way = os.pipe()
children = []
for i in range(count):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            run(is_victim=i == 0)
            status = 0
        finally:
            os._exit(status)
    children.append(child)
print("ended", *(os.waitpid(child, 0)[1] for child in children), flush=True)
"""
"""Processes that load one kernel: the first stops when half of its entry is written, then all others start at once."""

LIMIT_S = 60
SM_90A = Architecture((9, 0), specific=True)

pytestmark = [needs_nvrtc, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")]


def run_and_kill_the_first(tmp_path: Path, count: int) -> list[str]:
    """What such processes print, after the first was killed in the middle of its work."""
    command = [sys.executable, "-c", PROCESSES, str(tmp_path / "kernels"), TEXT, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            if line.startswith("half way"):
                os.kill(int(line.split()[-1]), signal.SIGKILL)
            else:
                lines.append(line.strip())
        assert process.wait(LIMIT_S) == 0
    return lines


def test_eight_processes_and_one_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = start_cold(tmp_path, monkeypatch)
    *hashes, ended = run_and_kill_the_first(tmp_path, 8)
    assert ended.split() == ["ended", str(int(signal.SIGKILL)), *["0"] * 7]
    assert len(hashes) == 7 and len(set(hashes)) == 1

    monkeypatch.setattr(nvrtc.Nvrtc, "compile", lambda *_: pytest.fail("it is in the cache"))
    assert hashlib.sha256(load_cubin(TINY, (9, 0))).hexdigest() == hashes[0]
    (leftover,) = folder.glob("*.tmp")
    assert len(entry_files(folder)) == 1 and leftover.stat().st_size > 0
    cache.clean()
    assert list(folder.iterdir()) == []


def test_after_a_kill_nothing_half_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = start_cold(tmp_path, monkeypatch)
    assert run_and_kill_the_first(tmp_path, 1) == [f"ended {int(signal.SIGKILL)}"]
    assert entry_files(folder) == [] and len(list(folder.glob("*.tmp"))) == 1
    kernels = [TINY, Kernel("other", "fill", TEXT + "\n")]
    assert build(kernels, [SM_90A]) == 2 and build(kernels, [SM_90A]) == 0
    assert load_cubin(TINY, (9, 0))[:4] == b"\x7fELF"
