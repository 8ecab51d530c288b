"""Forward: the time loop of vanilla as a kernel runs it, without autograd; and the pointwise steps by their public names."""

from __future__ import annotations

import torch

from ..cells.elman import elman_step as elman_pointwise_fw
from ..cells.gru import gru_step as gru_pointwise_fw
from ..cells.lstm import lstm_step as lstm_pointwise_fw
from ..cells.slstm import slstm_step as slstm_pointwise_fw
from ..layouts import OUTPUT, rearrange
from ..problem import Inputs, Outputs, Problem
from ..vanilla import masks, steps

__all__ = ["elman_pointwise_fw", "forward", "gru_pointwise_fw", "lstm_pointwise_fw", "slstm_pointwise_fw"]


def forward(problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
    """Fill the outputs step by step; without autograd."""
    padding, _ = masks(problem, inputs)
    states = rearrange(outputs.states, OUTPUT, "TSHBD")
    for t, (new, saved) in enumerate(steps(problem, inputs)):
        states[t] = torch.stack(new)
        if outputs.saved is not None:
            torch.stack(saved, out=outputs.saved[t])
    rearrange(outputs.last_states, "SBHD", "SHBD").copy_(torch.stack(new))
    if padding is not None:
        states.masked_fill_(padding.unsqueeze(1), 0)
