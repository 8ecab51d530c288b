"""Plain sequence functions with the arguments of `flashrnn.flashrnn`."""

from __future__ import annotations

from functools import partial

from flashrnn import flashrnn

lstm_tr_fwbw = partial(flashrnn, function="lstm", backend="triton_fused")
gru_tr_fwbw = partial(flashrnn, function="gru", backend="triton_fused")
elman_tr_fwbw = partial(flashrnn, function="elman", backend="triton_fused")
slstm_tr_fwbw = partial(flashrnn, function="slstm", backend="triton_fused")
