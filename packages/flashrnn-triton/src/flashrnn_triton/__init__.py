"""Triton kernels of FlashRNN for small heads, without a CUDA toolkit: the backend `triton_fused`."""

from __future__ import annotations

from .backend import TRITON_FUSED
from .functions import elman_tr_fwbw, gru_tr_fwbw, lstm_tr_fwbw, slstm_tr_fwbw
from .version import __version__

__all__ = ["TRITON_FUSED", "__version__", "elman_tr_fwbw", "gru_tr_fwbw", "lstm_tr_fwbw", "slstm_tr_fwbw"]
