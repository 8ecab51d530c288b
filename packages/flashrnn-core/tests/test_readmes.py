"""Every Python block of the READMEs and of docs/ runs, in order, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
READMES = ["README.md", "packages/flashrnn-core/README.md"]
PAGES = [f"docs/{name}.md" for name in ("api", "backends", "layers", "states")]


@pytest.mark.parametrize("name", READMES + PAGES)
def test_python_blocks_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "model_test" in (text := (ROOT / name).read_text(encoding="utf-8")):
        pytest.importorskip("flashrnn_testing")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert blocks
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), namespace)
    capsys.readouterr()


def test_no_page_is_forgotten() -> None:
    with_code = {path.name for path in (ROOT / "docs").glob("*.md") if "```python" in path.read_text(encoding="utf-8")}
    assert with_code == {Path(page).name for page in PAGES}
