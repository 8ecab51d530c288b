"""Plain sequence functions with the arguments of `flashrnn.flashrnn`."""

from __future__ import annotations

from flashrnn.api import named

lstm_tr_fwbw = named("lstm", "triton_fused")
gru_tr_fwbw = named("gru", "triton_fused")
elman_tr_fwbw = named("elman", "triton_fused")
slstm_tr_fwbw = named("slstm", "triton_fused")
