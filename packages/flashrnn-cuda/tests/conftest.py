"""What all tests of flashrnn-cuda share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from compile_helpers import forget

VARIABLES = ("TORCH_CUDA_ARCH_LIST", "FLASHRNN_CUDA_COMPILER", "FLASHRNN_EXTRA_INCLUDE_PATHS", "FLASHRNN_CACHE_DIR")


@pytest.fixture(autouse=True)
def _nothing_set_and_nothing_left(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests start with none of the variables set and leave nothing behind; on a GPU they do use the cache."""
    on_gpu = request.node.get_closest_marker("gpu") is not None
    for variable in VARIABLES:
        if not on_gpu or "CACHE" not in variable:
            monkeypatch.delenv(variable, raising=False)
    yield
    if not on_gpu:
        forget()
