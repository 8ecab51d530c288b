"""`python -m flashrnn` in a process of its own, with distributions that are really there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import flashrnn

GOOD = """
from flashrnn.vanilla_fwbw.backend import VanillaFwbw

class Quick(VanillaFwbw):
    name = "quick"
    aliases = ("q",)
    priority = 5
    interface_version = 1

QUICK = Quick()
"""

PICKY = """
from quick_kernels import Quick

class Picky(Quick):
    name = "picky"
    aliases = ()

    def why_not(self, problem):
        return f"picky needs T of at most 8, found {problem.sequence_size}; quick has no limit."

PICKY = Picky()
"""

ENTRY_POINTS = """
[flashrnn.backends]
quick = quick_kernels:QUICK
picky = picky_kernels:PICKY
sunk = sunk_kernels:SUNK
"""


def run(*arguments: str, path: Any = None) -> str:
    """What `python -m flashrnn` prints, with `path` in front of what Python finds."""
    env = {**os.environ, **({} if path is None else {"PYTHONPATH": str(path)})}
    command = [sys.executable, "-W", "error", "-m", "flashrnn", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def install(where: Path, name: str, version: str, entry_points: str = "", **modules: str) -> None:
    """A distribution as pip leaves it."""
    info = where / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    for module, source in modules.items():
        (where / f"{module}.py").write_text(source)


def test_the_report_of_core() -> None:
    text = run()
    assert f"flashrnn-core {flashrnn.__version__}" in text.splitlines()[0] and "torch " in text.splitlines()[0]
    for row in ("vanilla ", "vanilla_fwbw "):
        assert any(line.startswith(row) and " ready " in line for line in text.splitlines())
    assert "backend 'auto' takes " in text and "the tensors" not in text  # there are none


def test_the_report_of_an_installed_plug_in(tmp_path: Path) -> None:
    sunk = "raise OSError('libsunk.so: cannot open shared object file')\n"
    install(tmp_path, "quick-kernels", "0.7", ENTRY_POINTS, quick_kernels=GOOD, picky_kernels=PICKY, sunk_kernels=sunk)
    data = json.loads(run("--json", path=tmp_path))
    assert set(data) == {"versions", "platform", "devices", "backends", "probe", "warnings"}
    assert data["versions"]["flashrnn-core"] == flashrnn.__version__ and data["versions"]["torch"]
    assert data["devices"][0] == "cpu"
    backends = {x["name"]: x for x in data["backends"]}
    assert backends["quick"] == {
        "name": "quick",
        "aliases": ["q"],
        "distribution": "quick-kernels 0.7",
        "state": "ready",
        "reason": None,
    }
    assert backends["picky"]["state"] == "unavailable" and "T of at most 8, found 1024" in backends["picky"]["reason"]
    assert backends["sunk"]["state"] == "broken" and "libsunk.so: cannot open" in backends["sunk"]["reason"]
    assert "quick-kernels 0.7" in backends["sunk"]["reason"]
    assert backends["vanilla"]["state"] == backends["vanilla_fwbw"]["state"] == "ready"
    assert backends["vanilla"]["distribution"].startswith("flashrnn-core")
    for name in ("cuda", "cuda_fused", "triton_fused"):  # installed here or not
        assert backends[name]["state"] != "missing" or "not installed: install flashrnn-" in backends[name]["reason"]


def test_an_old_flashrnn_beside_core_is_reported(tmp_path: Path) -> None:
    install(tmp_path, "flashrnn", "1.0.8")
    text = run(path=tmp_path)
    assert "flashrnn 1.0.8" in text.splitlines()[0]
    (warning,) = [line for line in text.splitlines() if line.startswith("warning: ") and "1.0.8" in line]
    assert "pip uninstall flashrnn flashrnn-core" in warning and "then install flashrnn-core again" in warning


def test_what_an_interrupted_pip_left_breaks_nothing(tmp_path: Path) -> None:
    """Folders without METADATA; one of them still promises a backend."""
    for name in ("empty-1.0", "half_kernels-2.0"):
        (tmp_path / f"{name}.dist-info").mkdir()
    promises = tmp_path / "half_kernels-2.0.dist-info" / "entry_points.txt"
    promises.write_text("[flashrnn.backends]\nhalf = half_kernels:HALF\n")
    backends = {x["name"]: x for x in json.loads(run("--json", path=tmp_path))["backends"]}
    assert backends["half"]["state"] == "broken" and "half_kernels" in backends["half"]["reason"]
    assert backends["vanilla_fwbw"]["state"] == "ready"
