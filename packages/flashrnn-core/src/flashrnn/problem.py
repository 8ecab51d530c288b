"""Problem: everything a backend needs to know before it sees a tensor; and the tensors it is then given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from .cells import CellSpec, get_cell
from .config import FlashRNNConfig


@dataclass(frozen=True)
class Problem:
    """One call, as plain hashable data: enough for a backend to say why not, and to plan.

    Attributes:
        config: the options, with `dtype` settled.
        batch_size, sequence_size, num_heads, head_dim: B, T, NH, D.
        device: where the tensors lie.
        states_dtype: dtype of the initial states and of `last_states`.
        requires_grad: whether a backward pass may follow.
        has_states, has_lengths, has_resets: whether those arguments are given.
    """

    config: FlashRNNConfig
    batch_size: int
    sequence_size: int
    num_heads: int
    head_dim: int
    device: torch.device
    states_dtype: torch.dtype
    requires_grad: bool = False
    has_states: bool = False
    has_lengths: bool = False
    has_resets: bool = False

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        sizes = (self.batch_size, self.sequence_size, self.num_heads, self.head_dim)
        return hash((self.config, *sizes, self.device, self.states_dtype, self.requires_grad))

    @property
    def cell(self) -> CellSpec:
        """The cell to compute."""
        return get_cell(self.config.function)

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in."""
        dtype = self.config.dtype
        assert isinstance(dtype, torch.dtype), "a Problem's dtype is settled"
        return dtype

    @property
    def is_empty(self) -> bool:
        """Whether there is no step to compute: T = 0 or B = 0."""
        return self.batch_size == 0 or self.sequence_size == 0

    @property
    def saves_activations(self) -> bool:
        """Whether the forward pass keeps the cell's activations for the backward pass."""
        return self.requires_grad and not self.config.recompute and len(self.cell.saved) > 0

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Size by axis letter: S, B, T, G (gates of Wx), H, D."""
        return {
            "S": self.cell.num_states,
            "B": self.batch_size,
            "T": self.sequence_size,
            "G": len(self.cell.input_gates),
            "H": self.num_heads,
            "D": self.head_dim,
        }


shared_problem = lru_cache(maxsize=1024)(Problem)
"""Problem(...), the same object for calls that are alike: what was found out about it is then quickly found again."""


class Inputs(NamedTuple):
    """What a backend reads. Axes are in the order written here, whatever the memory order; D has stride 1.

    Wx [B, T, NG, NH, D], R [NR, NH, D, D] as [gate, head, out, in] and b [NB, NH, D] have the problem's dtype; states
    [NS, B, NH, D] (None: zeros) has `states_dtype`; lengths [B] is int64, resets [B, T] bool.
    A backward pass gets Wx only with `recompute`, else None.
    """

    Wx: Optional[Tensor]
    R: Tensor
    b: Tensor
    states: Optional[Tensor]
    lengths: Optional[Tensor]
    resets: Optional[Tensor]


class Outputs(NamedTuple):
    """What a forward pass fills, every element, and a backward pass reads; there last_states is empty.

    states [NS, B, T, NH, D] has the problem's dtype, last_states [NS, B, NH, D] `states_dtype`. saved, contiguous
    [T, K, NH, B, D] in the problem's dtype, holds the K activations of `cell.saved`; None unless `saves_activations`.
    """

    states: Tensor
    last_states: Tensor
    saved: Optional[Tensor]


class OutputGradients(NamedTuple):
    """The outside gradients of states and last_states, shapes as theirs; None is zero."""

    states: Optional[Tensor]
    last_states: Optional[Tensor]


class InputGradients(NamedTuple):
    """What a backward pass fills, every element; None is not asked for.

    Wx has the problem's dtype; R, b and states have the dtypes that they were given in, and are to be rounded to them once,
    from float32 (float64 for float64). Shapes as in Inputs.
    """

    Wx: Optional[Tensor]
    R: Optional[Tensor]
    b: Optional[Tensor]
    states: Optional[Tensor]
