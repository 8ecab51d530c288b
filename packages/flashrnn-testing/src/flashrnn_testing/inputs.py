"""Random inputs for the recurrence."""

from __future__ import annotations

from typing import Any, Optional, Union

import torch
from torch import Tensor

from flashrnn.cells import get_cell
from flashrnn.dtypes import parse_dtype


def default_device() -> torch.device:
    """The GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def create_inputs(
    batch_size: int,
    sequence_size: int,
    num_heads: int,
    head_dim: int,
    function: str,
    create_states: bool = True,
    dtype: Union[str, torch.dtype] = torch.float32,
    device: Union[str, torch.device, None] = None,
    seed: int = 0,
    **ignored: Any,
) -> tuple[Tensor, ...]:
    """Random inputs for which gradients can be asked; the same numbers on every device.

    Everything is standard normal, R divided by sqrt(head_dim); slstm's n is uniform in 0..2, so that its max acts on some
    elements and not on others.

    Args:
        batch_size, sequence_size, num_heads, head_dim: B, T, NH, D.
        function: "lstm", "gru", "elman" or "slstm".
        create_states: whether to make initial states, none of them zero.
        dtype, device: of all tensors; device None is the GPU if there is one.
        seed: of the random numbers.
        ignored: further keywords are allowed and without effect, so that one dictionary can describe a whole test.

    Returns:
        (Wx [B, T, NG, NH, D], states [NS, B, NH, D], R [NG, NH, D, D], b [NG, NH, D]); without states (Wx, R, b).
    """
    cell, B, T, NH, D = get_cell(function), batch_size, sequence_size, num_heads, head_dim
    generator = torch.Generator().manual_seed(seed)
    device, torch_dtype = device or default_device(), parse_dtype(dtype)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def leaf(x: Tensor) -> Tensor:
        return x.to(device=device, dtype=torch_dtype).requires_grad_()

    Wx = leaf(normal(B, T, len(cell.input_gates), NH, D))
    R = leaf(normal(len(cell.recurrent_gates), NH, D, D) / D**0.5)
    b = leaf(normal(len(cell.bias_gates), NH, D))
    if not create_states:
        return Wx, R, b
    states = normal(cell.num_states, B, NH, D)
    if "n" in cell.states:
        states[cell.states.index("n")] = 2 * torch.rand((B, NH, D), generator=generator, dtype=torch.float64)
    return Wx, leaf(states), R, b


def loss_weights(x: Tensor, seed: int) -> Tensor:
    """Fixed random weights that make a loss of x; the same numbers on every device, whatever the strides of x."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(x.shape, generator=generator, dtype=torch.float64).to(device=x.device, dtype=x.dtype)


def random_masks(
    batch_size: int, sequence_size: int, device: Optional[torch.device] = None, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """lengths [B], the first 0 and the second T, and resets [B, T] at about a quarter of the steps."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, sequence_size + 1, (batch_size,), generator=generator)
    lengths[:2] = torch.tensor([0, sequence_size])[: min(2, batch_size)]
    resets = torch.rand((batch_size, sequence_size), generator=generator) < 0.25
    return lengths.to(device or default_device()), resets.to(device or default_device())
