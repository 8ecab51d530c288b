"""Forward: the time loop of vanilla as a kernel runs it, without autograd; and the pointwise steps by their public names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor

from ..blocks import block_length
from ..cells.elman import elman_step as elman_pointwise_fw
from ..cells.gru import gru_step as gru_pointwise_fw
from ..cells.lstm import lstm_step as lstm_pointwise_fw
from ..cells.slstm import slstm_step as slstm_pointwise_fw
from ..cells.spec import Tensors
from ..layouts import OUTPUT, rearrange
from ..problem import Inputs, Outputs, Problem
from ..vanilla import masks, steps
from .memory import use_large_pages

__all__ = ["elman_pointwise_fw", "forward", "gru_pointwise_fw", "lstm_pointwise_fw", "slstm_pointwise_fw"]


@torch.inference_mode()
def forward(problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
    """Fill the outputs, a block of steps at a time; without autograd."""
    use_large_pages(outputs.states, outputs.saved)
    states, length = rearrange(outputs.states, OUTPUT, "TSHBD"), block_length(problem)
    run = steps(problem, inputs)
    for start in range(0, problem.sequence_size, length):
        new, saved = zip(*islice(run, length))
        states[start : start + length] = torch.stack(one_after_another(new)).unflatten(0, (len(new), -1))
        if outputs.saved is not None:
            torch.stack(one_after_another(saved), out=outputs.saved[start : start + length].flatten(0, 1))
    rearrange(outputs.last_states, "SBHD", "SHBD").copy_(torch.stack(new[-1]))
    padding, _ = masks(problem, inputs)
    if padding is not None:
        states.masked_fill_(padding.unsqueeze(1), 0)


def one_after_another(by_step: Sequence[Tensors]) -> list[Tensor]:
    """The tensors of all steps, to be stacked at once: faster than a stack of stacks."""
    return [x for tensors in by_step for x in tensors]
