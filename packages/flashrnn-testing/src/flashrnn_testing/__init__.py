"""Tests for FlashRNN backends: compare two of them, or inherit the suite that each has to pass.

`model_test(...)` compares two backends on random inputs. `BackendContract` is a pytest class to inherit:

    class TestMine(BackendContract):
        backend = "mine"
"""

from __future__ import annotations

import pytest

# ruff: noqa: E402
pytest.register_assert_rewrite("flashrnn_testing.contract")  # before it is imported, here and in the plug-in

from .compare import Mismatch, check_backward, check_close, check_forward, compare_with_baseline
from .contract import BackendContract
from .inputs import create_inputs
from .model_test import model_test
from .tolerances import TOLERANCES, Tolerance
from .version import __version__

__all__ = [
    "TOLERANCES",
    "BackendContract",
    "Mismatch",
    "Tolerance",
    "__version__",
    "check_backward",
    "check_close",
    "check_forward",
    "compare_with_baseline",
    "create_inputs",
    "model_test",
]
