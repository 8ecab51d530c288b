"""A recurrent layer made from `flashrnn()`, as the examples use it."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from flashrnn import flashrnn
from flashrnn.cells import get_cell


class RNNLayer(nn.Module):
    """Input projection and recurrence.

    Args:
        input_size: features of the input.
        num_heads: NH, heads that recur independently of each other.
        head_dim: D, size of one head's state; the layer's output has NH * D features.
        function: the cell, "lstm", "gru", "elman" or "slstm".
        backend: as for `flashrnn()`.
        forget_bias: initial bias of a forget gate, if the cell has one; above 0 the layer remembers from the start.
    """

    def __init__(
        self,
        input_size: int,
        num_heads: int,
        head_dim: int,
        function: str = "lstm",
        backend: str = "auto",
        forget_bias: float = 1.0,
    ) -> None:
        super().__init__()
        cell = get_cell(function)
        self.function, self.backend = function, backend
        self.gate_shape = (len(cell.input_gates), num_heads, head_dim)
        self.project = nn.Linear(input_size, len(cell.input_gates) * num_heads * head_dim, bias=False)
        self.R = nn.Parameter(torch.randn(len(cell.recurrent_gates), num_heads, head_dim, head_dim) / head_dim**0.5)
        self.b = nn.Parameter(torch.zeros(len(cell.bias_gates), num_heads, head_dim))
        if "f" in cell.bias_gates:
            nn.init.constant_(self.b[cell.bias_gates.index("f")], forget_bias)

    def forward(self, x: Tensor, states: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
        """Run over a sequence.

        Args:
            x: [B, T, input_size].
            states: last_states of the previous piece of the sequence, to go on from there. None: start from zeros.

        Returns:
            h [B, T, NH * D] and last_states [NS, B, 1, NH, D].
        """
        Wx = self.project(x).unflatten(-1, self.gate_shape)  # [B, T, NG, NH, D]
        all_states, last_states = flashrnn(Wx, self.R, self.b, states, function=self.function, backend=self.backend)
        return all_states[0].flatten(-2), last_states  # state 0 is h in every cell
