"""`import flashrnn` is light and leaves no trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import flashrnn

FORBIDDEN = ("triton", "flashrnn_cuda", "flashrnn_triton", "flashrnn_testing", "torch._dynamo", "torch._inductor", "pytest")

WATCH = """
import json, os, sys
import torch

before, env, seen = set(sys.modules), dict(os.environ), []

def watch(event, args):
    mode, flags = args[1:3] if event == "open" else (None, None)
    if set(str(mode or "")) & set("wax+") or (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        seen.append(f"{event} {args}")
    if event in {"os.mkdir", "os.rename", "os.remove", "os.putenv", "os.unsetenv", "os.system", "subprocess.Popen"}:
        seen.append(f"{event} {args}")
    if event.startswith(("socket.", "ctypes.dlopen")):
        seen.append(f"{event} {args}")

sys.addaudithook(watch)
import flashrnn
events = list(seen)
import flashrnn.discovery
print(json.dumps({
    "modules": sorted(set(sys.modules) - before),
    "events": events,
    "same_env": dict(os.environ) == env,
    "cuda": torch.cuda.is_initialized(),
    "found": flashrnn.discovery.candidates.cache_info().currsize,
}))
open("written", "w").close()
assert len(seen) > len(events), "the watch sees nothing"
"""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an import in a fresh process did."""
    folder = tmp_path_factory.mktemp("empty")
    env = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, "-B", "-W", "error::UserWarning:flashrnn", "-c", WATCH]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [x.name for x in folder.iterdir()] == ["written"]
    return json.loads(done.stdout)


def test_it_loads_nothing_heavy(trace: dict[str, Any]) -> None:
    loaded = [name for name in trace["modules"] if name.startswith(tuple(f"{x}." for x in FORBIDDEN)) or name in FORBIDDEN]
    assert "flashrnn.api" in trace["modules"] and loaded == []


def test_it_writes_no_file_and_starts_no_process(trace: dict[str, Any]) -> None:
    assert trace["events"] == []


def test_it_sets_no_environment_variable(trace: dict[str, Any]) -> None:
    assert trace["same_env"]


def test_it_asks_no_gpu_and_no_plug_in(trace: dict[str, Any]) -> None:
    assert not trace["cuda"] and trace["found"] == 0


def test_the_public_names_are_there() -> None:
    assert all(hasattr(flashrnn, name) for name in flashrnn.__all__)
    assert len(set(flashrnn.__all__)) == len(flashrnn.__all__)
    assert flashrnn.__version__ == version("flashrnn-core")
    assert flashrnn.flashrnn.__module__ == "flashrnn.api"


def test_the_package_is_typed() -> None:
    assert (Path(flashrnn.__file__).parent / "py.typed").exists()


# ---------------------------------------------------------------------------------------------------- flashrnn.tests.utils


def forget_testing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith(("flashrnn.tests", "flashrnn_testing")):
            monkeypatch.delitem(sys.modules, name)


def test_the_testing_helpers_stand_where_users_know_them() -> None:
    testing = pytest.importorskip("flashrnn_testing")
    from flashrnn.tests.utils import flashrnn as call
    from flashrnn.tests.utils import model_test

    assert model_test is testing.model_test and call is flashrnn.flashrnn


def test_without_flashrnn_testing_they_say_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_testing(monkeypatch)
    monkeypatch.setitem(sys.modules, "flashrnn_testing", None)
    with pytest.raises(ImportError, match="needs the package flashrnn-testing: install it"):
        import flashrnn.tests.utils  # noqa: F401


def test_what_is_missing_inside_flashrnn_testing_is_not_hidden(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forget_testing(monkeypatch)
    (tmp_path / "flashrnn_testing.py").write_text("import no_such_module_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_at_all"):
        import flashrnn.tests.utils  # noqa: F401
