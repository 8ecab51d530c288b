"""The simple recurrent network (Elman 1990)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from torch import Tensor

from .activations import through_tanh
from .spec import CellSpec, Tensors


def elman_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[Tensors, Tensors]:
    """h' = tanh(g)."""
    return (gates[0].tanh(),), ()


def elman_step_backward(
    grads: Sequence[Tensor], saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradient of g; h' itself is the activation, so nothing else is saved."""
    return (through_tanh(grads[0], new[0]),), (None,)


ELMAN = CellSpec(
    name="elman",
    states=("h",),
    gates=("g",),
    input_gates=("g",),
    recurrent_gates=("g",),
    bias_gates=("g",),
    saved=(),
    step=elman_step,
    step_backward=elman_step_backward,
)
