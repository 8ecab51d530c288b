"""The simple recurrent network (Elman 1990)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from torch import Tensor

from .spec import CellSpec, Tensors


def elman_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """h' = tanh(g)."""
    return (gates[0].tanh(),), ()


def elman_derivatives(saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensors:
    """Of h' by g; h' itself is the activation, so nothing else is saved."""
    (h_new,) = new
    return (1 - h_new * h_new,)


def elman_step_backward(
    grads: Sequence[Tensor], derivatives: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradient of g."""
    return (grads[0] * derivatives[0],), (None,)


ELMAN = CellSpec(
    name="elman",
    states=("h",),
    gates=("g",),
    input_gates=("g",),
    recurrent_gates=("g",),
    bias_gates=("g",),
    saved=(),
    step=elman_step,
    derivatives=elman_derivatives,
    step_backward=elman_step_backward,
)
