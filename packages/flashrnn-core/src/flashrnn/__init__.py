"""FlashRNN: fast recurrent kernels for LSTM, GRU, Elman and sLSTM cells with several heads.

`flashrnn(Wx, R, b, states, function=..., backend=...)` returns all states and the last ones, with gradients.
`python -m flashrnn` shows what works on this machine, and why the rest does not.
"""

from __future__ import annotations

from .api import flashrnn
from .config import FlashRNNConfig
from .errors import (
    BackendUnavailable,
    ConfigError,
    DeviceError,
    DoubleBackwardError,
    DtypeError,
    FlashRNNError,
    ForwardModeError,
    ShapeError,
    TransformError,
)
from .report import Explanation, explain
from .version import __version__

__all__ = [
    "BackendUnavailable",
    "ConfigError",
    "DeviceError",
    "DoubleBackwardError",
    "DtypeError",
    "Explanation",
    "FlashRNNConfig",
    "FlashRNNError",
    "ForwardModeError",
    "ShapeError",
    "TransformError",
    "__version__",
    "explain",
    "flashrnn",
]
