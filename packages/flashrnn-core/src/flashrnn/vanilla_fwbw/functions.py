"""Plain sequence functions with the arguments of `flashrnn()`, to compare a kernel with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

from torch import Tensor

from ..api import flashrnn, named
from ..cells import CELLS
from ..cells.spec import Step
from ..errors import ConfigError, describe
from .fw import lstm_pointwise_fw

lstm_pt_fwbw = named("lstm", "vanilla_fwbw")
gru_pt_fwbw = named("gru", "vanilla_fwbw")
elman_pt_fwbw = named("elman", "vanilla_fwbw")
slstm_pt_fwbw = named("slstm", "vanilla_fwbw")


def forward_sequence(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Union[Tensor, Mapping[str, Tensor], None] = None,
    pointwise: Step = lstm_pointwise_fw,
) -> tuple[Tensor, Tensor]:
    """The plainest baseline: a loop of product and pointwise step, differentiated by autograd.

    Args:
        Wx, R, b, states: as for `flashrnn.flashrnn`.
        pointwise: the step of a cell: `lstm_pointwise_fw`, `gru_pointwise_fw`, `elman_pointwise_fw`, `slstm_pointwise_fw`.

    Returns:
        states [NS, B, T, NH, D] and last_states [NS, B, 1, NH, D], as `flashrnn.flashrnn` returns them.
    """
    for cell in CELLS.values():
        if cell.step is pointwise:
            return flashrnn(Wx, R, b, states, function=cell.name, backend="vanilla")
    names = ", ".join(f"{name}_pointwise_fw" for name in CELLS)
    raise ConfigError(describe("pointwise", f"one of {names}", repr(pointwise)))
