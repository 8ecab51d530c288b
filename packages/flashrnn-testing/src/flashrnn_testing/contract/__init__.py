"""BackendContract: what every backend has to pass, here or in somebody else's package."""

from __future__ import annotations

from .framework import FrameworkTests
from .gradients import GradientTests
from .masks import MaskTests
from .memory import MemoryTests
from .options import OptionTests
from .states import StateTests
from .values import ValueTests


class BackendContract(ValueTests, StateTests, GradientTests, MemoryTests, MaskTests, OptionTests, FrameworkTests):
    """The whole suite; inherit it in a test module and name the backend.

        from flashrnn_testing import BackendContract

        class TestMine(BackendContract):
            backend = "mine"

    Attributes to set (see base.py): backend, and where they differ functions, dtypes, devices, head_dims, reference,
    has_second_derivatives.
    """


__all__ = ["BackendContract"]
