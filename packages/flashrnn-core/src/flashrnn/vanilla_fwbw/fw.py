"""Forward: the time loop of vanilla as a kernel runs it, without autograd; and the pointwise steps by their public names."""

from __future__ import annotations

import torch

from ..cells.elman import elman_step as elman_pointwise_fw
from ..cells.gru import gru_step as gru_pointwise_fw
from ..cells.lstm import lstm_step as lstm_pointwise_fw
from ..cells.slstm import slstm_step as slstm_pointwise_fw
from ..layouts import rearrange
from ..problem import Inputs, Outputs, Problem
from ..vanilla import loop_over_time, returned_states

__all__ = ["elman_pointwise_fw", "forward", "gru_pointwise_fw", "lstm_pointwise_fw", "slstm_pointwise_fw"]


def forward(problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
    """Fill the outputs; without autograd."""
    history = loop_over_time(problem, inputs)
    states, last_states = returned_states(problem, inputs, history)
    outputs.states.copy_(states)
    outputs.last_states.copy_(last_states)
    if outputs.saved is not None:
        for k, steps in enumerate(zip(*history.saved)):
            rearrange(outputs.saved[:, :, k], "TBHD", "THBD").copy_(torch.stack(steps))
