"""Every Python block of the READMEs and of docs/ runs, in order, as it stands there."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
READMES = ["README.md", "packages/flashrnn-core/README.md"]
PAGES = [f"docs/{name}.md" for name in ("api", "backends", "layers", "states")]
DISTRIBUTED = "docs/distributed.md"


def blocks_of(name: str) -> list[str]:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    return blocks


@pytest.mark.parametrize("name", READMES + PAGES)
def test_python_blocks_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "model_test" in (ROOT / name).read_text(encoding="utf-8"):
        pytest.importorskip("flashrnn_testing")
    namespace: dict[str, object] = {}
    for block in blocks_of(name):
        exec(compile(block, name, "exec"), namespace)
    capsys.readouterr()


@pytest.mark.skipif(sys.platform != "linux", reason="torchrun and Gloo as on Linux")
def test_the_page_on_several_processes_runs_on_two(tmp_path: Path) -> None:
    experimental = pytest.importorskip("torch.distributed.tensor.experimental")
    if "in_grad_placements" not in inspect.signature(experimental.local_map).parameters:
        pytest.skip("this local_map has no in_grad_placements")
    program = tmp_path / "program.py"
    program.write_text("".join(blocks_of(DISTRIBUTED)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_no_page_is_forgotten() -> None:
    with_code = {path.name for path in (ROOT / "docs").glob("*.md") if "```python" in path.read_text(encoding="utf-8")}
    assert with_code == {Path(page).name for page in [*PAGES, DISTRIBUTED]}
