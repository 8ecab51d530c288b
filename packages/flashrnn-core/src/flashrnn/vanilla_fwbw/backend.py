"""The backend `vanilla_fwbw`."""

from __future__ import annotations

from typing import Optional

from ..backend import Backend
from ..problem import InputGradients, Inputs, OutputGradients, Outputs, Problem
from .bw import backward
from .fw import forward


class VanillaFwbw(Backend):
    """`vanilla_fwbw`: any device, float16 to float64, first derivatives by hand: faster than vanilla, and less memory."""

    name = "vanilla_fwbw"
    priority = -10
    interface_version = 1
    is_reference = True

    def why_not(self, problem: Problem) -> Optional[str]:
        """Never: it solves every problem."""
        return None

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """See fw.py."""
        forward(problem, inputs, outputs)

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """See bw.py."""
        backward(problem, inputs, outputs, grads, into)


VANILLA_FWBW = VanillaFwbw()
