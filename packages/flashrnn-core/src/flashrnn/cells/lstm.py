"""LSTM with the gates i, f, z, o (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from .activations import through_sigmoid, through_tanh
from .spec import CellSpec, Tensors


def lstm_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """c' = s(f) c + s(i) tanh(z);  h' = s(o) tanh(c')."""
    _, c = states
    i, f, o = gates[0].sigmoid(), gates[1].sigmoid(), gates[3].sigmoid()
    z = gates[2].tanh()
    c_new = torch.addcmul(i * z, f, c)
    h_new = o * c_new.tanh()
    return (h_new, c_new), (i, f, z, o)


def lstm_derivatives(saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensors:
    """Of h' by o and c'; of c' by i, f, z and the old c."""
    i, f, z, o = saved
    c_old, tanh_c = old[1], new[1].tanh()
    h_by_o, h_by_c = through_sigmoid(tanh_c, o), through_tanh(o, tanh_c)
    return h_by_o, h_by_c, through_sigmoid(z, i), through_sigmoid(c_old, f), through_tanh(i, z), f


def lstm_step_backward(
    grads: Sequence[Tensor], derivatives: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradients of (i, f, z, o) and of the old (h, c)."""
    dh, dc = grads
    h_by_o, h_by_c, c_by_i, c_by_f, c_by_z, c_by_c = derivatives
    dc = torch.addcmul(dc, dh, h_by_c)
    return (dc * c_by_i, dc * c_by_f, dc * c_by_z, dh * h_by_o), (None, dc * c_by_c)


GATES = ("i", "f", "z", "o")

LSTM = CellSpec(
    name="lstm",
    states=("h", "c"),
    gates=GATES,
    input_gates=GATES,
    recurrent_gates=GATES,
    bias_gates=GATES,
    saved=GATES,
    step=lstm_step,
    derivatives=lstm_derivatives,
    step_backward=lstm_step_backward,
)
