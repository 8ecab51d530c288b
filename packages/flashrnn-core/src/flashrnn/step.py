"""step(): one time step, for streaming inference and reinforcement learning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .api import flashrnn
from .cells import get_cell
from .checks import check_tensor
from .config import FlashRNNConfig, merge_config
from .dtypes import accumulate_dtype, parse_dtype, resolve_dtype
from .errors import ShapeError, describe
from .layouts import spell


def step(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Union[Tensor, Mapping[str, Tensor], None] = None,
    function: str = "lstm",
    config: Optional[FlashRNNConfig] = None,
    backend: str = "auto",
    dtype: Union[str, torch.dtype, None] = None,
    *,
    resets: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Run one time step: a call of `flashrnn()` with T = 1, and without its axis of time.

    Steps one after the other, each from the states that the one before returned, equal one call for the whole sequence to
    the bit, for between steps the states are kept in float32. That holds for each backend, not from one to another: name one
    where "auto" might take different ones for T = 1 and for the sequence. It does not hold for initial states in 16 bits.

    Args:
        Wx: [B, NG, NH, D], the input part of the gates' pre-activations, already projected.
        R, b, function, config, backend, dtype: as for `flashrnn()`.
        states: the states before the step, [NS, B, NH, D] or by name, as for `flashrnn()`. None: zeros, in float32 (float64
            where that is computed in).
        resets: [B] bool. Where true, all states of the row are zero before the step.

    Returns:
        h [B, NH, D], the output, in the dtype computed in, and
        states [NS, B, NH, D] for the next step, in the dtype of those given. Both have gradients, as in `flashrnn()`.

    Raises:
        FlashRNNError: as for `flashrnn()`.
    """
    config = merge_config(config, function, backend, dtype)
    layout = config.input_shape.replace("T", "")
    _check_axes("Wx", Wx, layout)
    if states is None:
        shape = (get_cell(config.function).num_states, Wx.shape[0], *Wx.shape[-2:])
        kept = accumulate_dtype(resolve_dtype(parse_dtype(config.dtype), Wx))
        states = Wx.new_zeros(shape, dtype=kept)
    if resets is not None:
        _check_axes("resets", resets, "B")
        resets = resets.unsqueeze(1)
    time = config.output_shape.index("T")
    Wx = Wx.unsqueeze(config.input_shape.index("T"))
    all_states, last_states = flashrnn(Wx, R, b, states, config=config, resets=resets)
    return all_states[0].squeeze(time - 1), last_states.squeeze(time)


def _check_axes(name: str, x: Any, layout: str) -> None:
    check_tensor(name, x)
    if x.ndim != len(layout):
        raise ShapeError(describe(name, f"{len(layout)} axes {spell(layout)}", f"shape {list(x.shape)}"))
