"""LSTM with the gates i, f, z, o (Hochreiter and Schmidhuber 1997; forget gate: Gers et al. 2000)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from torch import Tensor

from .activations import through_sigmoid, through_tanh
from .spec import CellSpec, Tensors


def lstm_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """c' = s(f) c + s(i) tanh(z);  h' = s(o) tanh(c')."""
    _, c = states
    i, f, o = gates[0].sigmoid(), gates[1].sigmoid(), gates[3].sigmoid()
    z = gates[2].tanh()
    c_new = f * c + i * z
    h_new = o * c_new.tanh()
    return (h_new, c_new), (i, f, z, o)


def lstm_step_backward(
    grads: Sequence[Tensor], saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradients of (i, f, z, o) and of the old (h, c)."""
    dh, dc = grads
    i, f, z, o = saved
    c_old, tanh_c = old[1], new[1].tanh()
    do = through_sigmoid(dh * tanh_c, o)
    dc = dc + through_tanh(dh * o, tanh_c)
    di = through_sigmoid(dc * z, i)
    df = through_sigmoid(dc * c_old, f)
    dz = through_tanh(dc * i, z)
    return (di, df, dz, do), (None, dc * f)


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
    step_backward=lstm_step_backward,
)
