"""FlashRNN: fast recurrent kernels for LSTM, GRU, Elman and sLSTM cells with several heads.

`flashrnn(Wx, R, b, states, function=..., backend=...)` returns all states and the last ones, with gradients.
`flashrnn.step` is one time step of it, `flashrnn.nn` has layers with the call and the parameters of torch.nn's.
`python -m flashrnn` shows what works on this machine, and why the rest does not.
"""

from __future__ import annotations

from . import nn
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
from .step import step
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
    "nn",
    "step",
]
