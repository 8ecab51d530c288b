"""The testing helpers under the import path that users know; they live in flashrnn-testing."""

from __future__ import annotations

from .. import flashrnn

try:
    from flashrnn_testing import check_backward, check_forward, compare_with_baseline, create_inputs, model_test
except ModuleNotFoundError as error:
    if error.name != "flashrnn_testing":
        raise
    raise ImportError("flashrnn.tests.utils needs the package flashrnn-testing: install it.") from error

__all__ = ["check_backward", "check_forward", "compare_with_baseline", "create_inputs", "flashrnn", "model_test"]
