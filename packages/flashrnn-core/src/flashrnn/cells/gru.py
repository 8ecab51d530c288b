"""GRU with the reset gate after the product (Cho et al. 2014, in the form of torch.nn.GRU and cuDNN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from torch import Tensor

from .activations import through_sigmoid, through_tanh
from .spec import CellSpec, Tensors


def gru_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """h' = s(z) h + (1 - s(z)) tanh(n + s(r) g), with g = R_g h + b_g and n = Wx_n + b_n."""
    (h,) = states
    g, r, z = gates[0], gates[1].sigmoid(), gates[2].sigmoid()
    n = (gates[3] + r * g).tanh()
    h_new = z * h + (1 - z) * n
    return (h_new,), (g, r, z, n)


def gru_step_backward(
    grads: Sequence[Tensor], saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradients of (g, r, z, n), and of the old h along its direct path z * h."""
    (dh,) = grads
    g, r, z, n = saved
    (h_old,) = old
    dn = through_tanh(dh * (1 - z), n)
    dz = through_sigmoid(dh * (h_old - n), z)
    dr = through_sigmoid(dn * g, r)
    return (dn * r, dr, dz, dn), (dh * z,)


GRU = CellSpec(
    name="gru",
    states=("h",),
    gates=("g", "r", "z", "n"),
    input_gates=("r", "z", "n"),
    recurrent_gates=("g", "r", "z"),
    bias_gates=("g", "r", "z", "n"),
    saved=("g", "r", "z", "n"),
    step=gru_step,
    step_backward=gru_step_backward,
)
