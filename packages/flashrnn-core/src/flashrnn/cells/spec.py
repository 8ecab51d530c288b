"""CellSpec: what a cell is, as data, with the mathematics of one step beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable, Optional

from torch import Tensor

Tensors = tuple[Tensor, ...]

Step = Callable[..., tuple[Tensors, Tensors]]
"""(gates, states) -> (new states, saved activations); every tensor has one shape, e.g. [B, NH, D]."""

Derivatives = Callable[[Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Tensors]
"""(saved, old states, new states) -> what step_backward multiplies with."""

StepBackward = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Tensors, tuple[Optional[Tensor], ...]]]
"""(gradients of the new states, derivatives) -> (gradients of the gates, of the old states)."""


@dataclass(frozen=True)
class CellSpec:
    """A recurrent cell: names as data, and the pointwise mathematics of one step in plain torch.

    A gate's pre-activation is the sum of the parts it has: an input part Wx, a recurrent part R @ h, a bias b.
    The gates with a recurrent part stand first in `gates`, those with an input part and those with a bias last, so that
    each set is a slice.

    Attributes:
        name: the value of `function` that selects the cell.
        states: names of the states in order. Index 0 is "h", the one that recurs.
        gates: names of all gates in order.
        input_gates: gates with an input part, the G axis of Wx.
        recurrent_gates: gates with a recurrent part, the first axis of R.
        bias_gates: gates with a bias, the first axis of b.
        saved: names of the activations that `step` hands to `derivatives`, at most as many as gates.
        constant_states: states that are constants for differentiation: the gradient that reaches them is ignored, the one
            they pass on is zero.
        step: one step forward. Ordinary autograd through it gives the cell's gradients.
        derivatives: all of the gradients by hand that waits for no gradient. It is called for many steps at once, with
            tensors that have an axis of time in front, which is faster than step by step.
        step_backward: the rest of the gradients by hand, for one step. A `None` among those of the old states means zero.
            That of h holds the direct path only: what comes through R is added by the caller.
        step_takes_dtype: whether `step` has an argument `dtype`: that of the results, float16 with tensors of float32 too.
    """

    name: str
    states: tuple[str, ...]
    gates: tuple[str, ...]
    input_gates: tuple[str, ...]
    recurrent_gates: tuple[str, ...]
    bias_gates: tuple[str, ...]
    saved: tuple[str, ...]
    step: Step
    derivatives: Derivatives
    step_backward: StepBackward
    constant_states: tuple[str, ...] = ()
    step_takes_dtype: bool = False

    def __post_init__(self) -> None:
        if self.states[0] != "h":
            raise ValueError(f"cell {self.name}: the first state must be 'h', got {self.states}")
        if self.gates[: len(self.recurrent_gates)] != self.recurrent_gates:
            raise ValueError(f"cell {self.name}: recurrent gates {self.recurrent_gates} must stand first in {self.gates}")
        for kind, some in (("input", self.input_gates), ("bias", self.bias_gates)):
            if self.gates[len(self.gates) - len(some) :] != some:
                raise ValueError(f"cell {self.name}: {kind} gates {some} must stand last in {self.gates}")
        if len(self.saved) > len(self.gates):
            raise ValueError(f"cell {self.name}: saves {len(self.saved)} activations, at most {len(self.gates)}")

    @property
    def num_states(self) -> int:
        """NS, the number of states."""
        return len(self.states)
