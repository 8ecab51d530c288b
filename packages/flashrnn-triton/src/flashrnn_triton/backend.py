"""The backend `triton_fused`: the whole sequence in one kernel, R on the chip."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any, Optional

from flashrnn.backend import Backend
from flashrnn.problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

from .availability import is_interpreted, why_not_triton

INTERPRETER = Lock()


def one_at_a_time() -> AbstractContextManager[Any]:
    """Triton's interpreter changes Triton while it runs a kernel: other threads wait. Compiled kernels need no lock."""
    return INTERPRETER if is_interpreted() else nullcontext()


class TritonFused(Backend):
    """`triton_fused`: NVIDIA GPUs from compute capability 8.0, float32, float16 and bfloat16, head_dim up to 64.

    With TRITON_INTERPRET=1 in the environment it computes on the CPU, slowly, to look for faults. Triton is imported when
    the first kernel is needed.
    """

    name = "triton_fused"
    aliases = ("triton",)
    priority = 20
    interface_version = 1

    def why_not(self, problem: Problem) -> Optional[str]:
        """The machine, the dtype, the function, or a head_dim that is too large."""
        return why_not_triton(problem)

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """See forward.py."""
        from .forward import forward

        with one_at_a_time():
            forward(problem, inputs, outputs)

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """See backward.py."""
        from .backward import backward

        with one_at_a_time():
            backward(problem, inputs, outputs, grads, into)


TRITON_FUSED = TritonFused()
