"""The layers by name: what each adds to RNNBase."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ConfigError, describe
from .base import RNNBase


class LSTM(RNNBase):
    """torch.nn.LSTM with several heads and the kernels of flashrnn; gates i, f, g, o, states (h, c).

    Arguments and parameters: see `flashrnn.nn.RNNBase`. Call: `output, (h_n, c_n) = lstm(input, (h_0, c_0))`, see `forward`.
    """

    function = "lstm"
    mode = "LSTM"


class GRU(RNNBase):
    """torch.nn.GRU with several heads and the kernels of flashrnn; gates r, z, n, state h.

    Arguments and parameters: see `flashrnn.nn.RNNBase`. Call: `output, h_n = gru(input, h_0)`, see `forward`.
    """

    function = "gru"
    mode = "GRU"

    def _recurrent_order(self, x: Tensor) -> Tensor:
        """(r, z, n) of the parameters as (g, r, z) of R: g is the recurrent part of n, inside the reset gate."""
        return x.roll(1, 0)


class RNN(RNNBase):
    """torch.nn.RNN, the network of Elman (1990), with several heads and the kernels of flashrnn; state h.

    Arguments and parameters: see `flashrnn.nn.RNNBase`; nonlinearity is "tanh". Call: `output, h_n = rnn(input, h_0)`, see
    `forward`.
    """

    function = "elman"
    mode = "RNN_TANH"
    nonlinearity = "tanh"

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh", *args: Any, **kwargs: Any
    ) -> None:
        if nonlinearity != "tanh":
            todo = "torch.nn.RNN has 'relu', flashrnn.nn has not."
            raise ConfigError(describe("nonlinearity", "'tanh'", repr(nonlinearity), todo))
        super().__init__(input_size, hidden_size, num_layers, *args, **kwargs)


class SLSTM(RNNBase):
    """sLSTM with the recurrence of Beck et al. (2024), xLSTM; gates i, f, z, o, states (h, c, n, m).

    Arguments and parameters: see `flashrnn.nn.RNNBase`. Call: `output, (h_n, c_n, n_n, m_n) = slstm(input, (h_0, c_0, n_0,
    m_0))`, see `forward`. m, the stabiliser, is a constant for differentiation.

    A forget gate of pre-activation b keeps its cell for about 1 / (1 - sigmoid(b)) = 1 + exp(b) steps. The biases of forget
    gates start evenly spaced from 3 to 6 in each head, for 21 to 404 steps: time spans spread on a logarithmic scale, as
    Tallec and Ollivier (2018), "Can recurrent neural networks warp time?", propose for LSTMs. They stand in bias_ih, with
    zeros in bias_hh.
    """

    function = "slstm"
    mode = "SLSTM"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw all parameters anew, and set the biases of the forget gates."""
        super().reset_parameters()
        for _, _, *biases in self.all_weights:
            for bias, start, end in zip(biases, (3.0, 0.0), (6.0, 0.0)):
                forget = bias.unflatten(0, (-1, self.num_heads, self.head_dim))[1]  # gates i, f, z, o
                forget.copy_(torch.linspace(start, end, self.head_dim))
