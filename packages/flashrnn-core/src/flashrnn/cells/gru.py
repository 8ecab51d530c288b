"""GRU with the reset gate after the product (Cho et al. 2014, in the form of torch.nn.GRU and cuDNN)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor

from .activations import through_sigmoid, through_tanh
from .spec import CellSpec, Tensors


def gru_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """h' = s(z) h + (1 - s(z)) tanh(n + s(r) g), with g = R_g h + b_g and n = Wx_n + b_n."""
    (h,) = states
    g, r, z = gates[0], gates[1].sigmoid(), gates[2].sigmoid()
    n = torch.addcmul(gates[3], r, g).tanh()
    return (torch.lerp(n, h, z),), (g, r, z, n)


def gru_derivatives(saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensors:
    """Of h' by n, z and the old h; of n's pre-activation by g and r."""
    g, r, z, n = saved
    (h_old,) = old
    return through_tanh(1 - z, n), through_sigmoid(h_old - n, z), z, r, through_sigmoid(g, r)


def gru_step_backward(
    grads: Sequence[Tensor], derivatives: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradients of (g, r, z, n), and of the old h along its direct path z * h."""
    (dh,) = grads
    h_by_n, h_by_z, h_by_h, n_by_g, n_by_r = derivatives
    dn = dh * h_by_n
    return (dn * n_by_g, dn * n_by_r, dh * h_by_z, dn), (dh * h_by_h,)


GRU = CellSpec(
    name="gru",
    states=("h",),
    gates=("g", "r", "z", "n"),
    input_gates=("r", "z", "n"),
    recurrent_gates=("g", "r", "z"),
    bias_gates=("g", "r", "z", "n"),
    saved=("g", "r", "z", "n"),
    step=gru_step,
    derivatives=gru_derivatives,
    step_backward=gru_step_backward,
)
