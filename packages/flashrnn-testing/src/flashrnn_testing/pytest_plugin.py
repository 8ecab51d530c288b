"""Pytest plug-in: the `gpu` marker, and empty memory that is full of NaN."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

POISON = "flashrnn_poison_empty"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini option that poisons memory in every test."""
    parser.addini(POISON, "fill the memory of torch.empty and its like with NaN in every test", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "gpu: needs a CUDA GPU; skipped, with the reason, where there is none")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `gpu` where there is none."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip(f"needs a CUDA GPU; torch {torch.__version__} sees none")


@pytest.fixture
def poison_empty() -> Iterator[None]:
    """Fill memory that is allocated but never written with NaN, by torch's own means."""
    settings: Any = torch.utils.deterministic
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only, fill = torch.is_deterministic_algorithms_warn_only_enabled(), settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    settings.fill_uninitialized_memory = True
    yield
    settings.fill_uninitialized_memory = fill
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


@pytest.fixture(autouse=True)
def _poison_if_configured(request: pytest.FixtureRequest) -> None:
    if request.config.getini(POISON):
        request.getfixturevalue("poison_empty")
