"""What all tests of flashrnn-cuda share."""

from __future__ import annotations

import pytest

VARIABLES = ("TORCH_CUDA_ARCH_LIST", "FLASHRNN_CUDA_COMPILER", "FLASHRNN_EXTRA_INCLUDE_PATHS", "FLASHRNN_CACHE_DIR")


@pytest.fixture(autouse=True)
def _without_the_users_settings(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Tests start with none of the variables set; on a GPU they do use the cache, wherever it is."""
    for variable in VARIABLES:
        if request.node.get_closest_marker("gpu") is None or "CACHE" not in variable:
            monkeypatch.delenv(variable, raising=False)
