"""The reference with a backward pass by hand, as a kernel backend runs it; and the plain functions to compare kernels with.

`lstm_pt_fwbw(Wx, R, b, states)` and its siblings run one cell on this backend, `forward_sequence` is a loop under autograd.
"""

from __future__ import annotations

from .backend import VANILLA_FWBW
from .functions import elman_pt_fwbw, forward_sequence, gru_pt_fwbw, lstm_pt_fwbw, slstm_pt_fwbw
from .fw import elman_pointwise_fw, gru_pointwise_fw, lstm_pointwise_fw, slstm_pointwise_fw

__all__ = [
    "VANILLA_FWBW",
    "elman_pointwise_fw",
    "elman_pt_fwbw",
    "forward_sequence",
    "gru_pointwise_fw",
    "gru_pt_fwbw",
    "lstm_pointwise_fw",
    "lstm_pt_fwbw",
    "slstm_pointwise_fw",
    "slstm_pt_fwbw",
]
