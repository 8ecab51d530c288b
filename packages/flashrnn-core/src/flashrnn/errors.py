"""The errors FlashRNN raises: each names the argument, what was expected, what came, and what to do."""

from __future__ import annotations


class FlashRNNError(Exception):
    """Base of all errors raised by FlashRNN itself."""


class ConfigError(FlashRNNError, ValueError):
    """An option has a value it cannot have, or two places contradict each other."""


class ShapeError(FlashRNNError, ValueError):
    """A tensor has the wrong rank or the wrong size along an axis, or the values of `lengths` do not fit."""


class DtypeError(FlashRNNError, TypeError):
    """An argument has the wrong type or a tensor the wrong dtype."""


class DeviceError(FlashRNNError, ValueError):
    """The tensors of one call lie on different devices."""


class BackendUnavailable(FlashRNNError, RuntimeError):
    """The named backend is unknown, not installed, broken, or cannot solve this problem."""


class ForwardModeError(FlashRNNError, RuntimeError):
    """Forward-mode derivatives were asked of a backend that has only reverse-mode ones."""


class TransformError(FlashRNNError, RuntimeError):
    """A derivative by torch.func was asked of a backend that has those of torch.autograd only."""


class DoubleBackwardError(FlashRNNError, RuntimeError):
    """A second derivative was asked of a backend that has only first ones."""


def describe(argument: str, expected: str, got: str, todo: str = "") -> str:
    """One sentence pattern for all errors: argument, expected, got, what to do."""
    return f"{argument}: expected {expected}, got {got}." + (f" {todo}" if todo else "")
