"""A suite whose attributes make no sense fails once, where pytest collects it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

WRONG = {
    "pass": 'backend: expected the name of a backend, got None. Write `backend = "mine"` in the class.',
    "backend = 'auto'": "backend: expected the name of a backend, got 'auto'.",
    "backend = 'vanila'": "backend: expected one of auto, ",
    "backend, reference = 'vanilla', 'vanila'": "backend: expected one of auto, ",
    "backend, functions = 'vanilla', ('lstn',)": "function: expected one of lstm, gru, elman, slstm, got 'lstn'.",
    "backend, functions = 'vanilla', ('lstm')": "functions: expected a tuple of one str or more, got 'lstm'.",
    "backend, functions = 'vanilla', ()": "functions: expected a tuple of one str or more, got ().",
    "backend, dtypes = 'vanilla', ('float32',)": "dtypes: expected a tuple of one dtype or more, got ('float32',).",
    "backend, head_dims = 'vanilla', 16": "head_dims: expected a tuple of one int or more, got 16.",
    "backend, devices = 'vanilla', 'cpu'": "devices: expected a tuple of one str or more, got 'cpu'.",
}


def test_each_fails_once_and_says_why(tmp_path: Path) -> None:
    classes = [f"class TestMine{k}(BackendContract):\n    {attributes}\n" for k, attributes in enumerate(WRONG)]
    (tmp_path / "test_mine.py").write_text("from flashrnn_testing import BackendContract\n\n" + "\n".join(classes))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = done.stdout.splitlines()
    assert done.returncode == 2 and f"{len(WRONG)} errors in" in lines[-1]
    for k, told in enumerate(WRONG.values()):
        assert sum(line.startswith(f"TestMine{k}: {told}") for line in lines) == 1, told
    assert len(lines) < 10 * len(WRONG)
