"""RNNBase: what all layers share, parameters and forward pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Optional, Union

import torch
from torch import Tensor
from torch.nn import Module, Parameter, init
from torch.nn.functional import dropout, linear
from torch.nn.utils.rnn import PackedSequence

from ..api import flashrnn
from ..cells import get_cell
from ..checks import check_tensor
from ..config import FlashRNNConfig
from ..vanilla import pad_gates
from .arguments import as_lengths, as_resets, as_states, check_input, check_options, check_packed, check_parameter
from .sequences import Direction, Packing, clear_padding, directions

States = Union[Tensor, tuple[Tensor, ...]]
"""[num_layers * num_directions, B, hidden_size], one for each state of the cell, in a tuple if there are several."""


class RNNBase(Module):
    """Several recurrent layers, with the constructor, the call and the parameters of torch.nn's. Subclasses say which cell.

    They are no subclasses of torch.nn.LSTM and its siblings, at which torch.compile breaks its graph.

    Args:
        input_size: features of the input.
        hidden_size: features of the output of one direction, H; num_heads * head_dim.
        num_layers: layers, each of which reads the output of the one before.
        bias: whether there are bias parameters.
        batch_first: whether input and output are [B, T, features]; else they are [T, B, features].
        dropout: probability with which, in training, each element of the output of every layer but the last is zero.
        bidirectional: whether each layer reads in both directions. Its output is then that of both, side by side.
        proj_size: 0; see Raises.
        device, dtype: of the parameters.
        num_heads: NH, heads that recur independently of each other.
        backend: as for `flashrnn.flashrnn()`; the attribute of that name may be changed at any time.

    Parameters, for layer k, with `_reverse` behind the name for the backward direction:
        weight_ih_lk [gates * H, features], weight_hh_lk [gates * H, head_dim], bias_ih_lk and bias_hh_lk [gates * H].
        With one head these are the names and shapes of torch.nn's. Row (g * NH + n) * D + j of weight_hh belongs to gate g
        of element j of head n, and multiplies the h of that head alone.
        All are drawn as in torch.nn and in its order, from U(-1/sqrt(fan), 1/sqrt(fan)), where fan is head_dim for weight_hh
        and hidden_size for the others.

    Raises:
        ConfigError: an argument has a value that it cannot have. There is no projection of h (proj_size).
    """

    function: str
    """The cell, as `flashrnn.flashrnn()` names it."""

    mode: str
    """The cell, as torch.nn.RNNBase names it."""

    proj_size = 0
    weight_ih_l0: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Any = None,
        dtype: Any = None,
        *,
        num_heads: int = 1,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers, "num_heads": num_heads}
        flags = {"bias": bias, "batch_first": batch_first, "bidirectional": bidirectional}
        input_size, hidden_size, num_layers, num_heads = check_options(sizes, flags, dropout, proj_size)
        if dropout > 0 and num_layers == 1:
            warnings.warn(f"dropout={dropout} acts between layers, and num_layers is 1: it does nothing.", stacklevel=2)
        FlashRNNConfig(self.function, backend)
        self.input_size, self.hidden_size, self.num_layers = input_size, hidden_size, num_layers
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.bias, self.batch_first, self.bidirectional = bias, batch_first, bidirectional
        self.dropout, self.backend = float(dropout), backend
        for k, names in enumerate(self._all_weights):
            features = input_size if k < self.num_directions else self.num_directions * hidden_size
            for name, shape in zip(names, self._parameter_shapes(features)):
                self.register_parameter(name, Parameter(torch.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def _all_weights(self) -> list[list[str]]:
        """The names of the parameters, in one list for each layer and direction, under torch.nn's name for it."""
        kinds = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")[: 4 if self.bias else 2]
        suffixes = ("", "_reverse")[: self.num_directions]
        return [[f"{kind}_l{k}{suffix}" for kind in kinds] for k in range(self.num_layers) for suffix in suffixes]

    def _parameter_shapes(self, features: int) -> tuple[tuple[int, ...], ...]:
        """The shapes of the parameters of a layer whose input has so many features, in the order of their names."""
        rows = len(get_cell(self.function).input_gates) * self.hidden_size
        return (rows, features), (rows, self.head_dim), (rows,), (rows,)

    @property
    def num_directions(self) -> int:
        """2 if it is bidirectional, else 1."""
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters, in one list for each layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights(self) -> list[Tensor]:
        """The parameters, in one list, under torch.nn's name for it."""
        return [weight for weights in self.all_weights for weight in weights]

    def reset_parameters(self) -> None:
        """Draw all parameters anew."""
        for name, weight in self.named_parameters():
            bound = 1 / math.sqrt(self.head_dim if "weight_hh" in name else self.hidden_size)
            init.uniform_(weight, -bound, bound)

    def flatten_parameters(self) -> None:
        """Does nothing: it is there for code that was written for torch.nn's layers, which want it for cuDNN."""

    def extra_repr(self) -> str:
        """The arguments that are not at their default."""
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {"num_layers": 1, "bias": True, "batch_first": False, "dropout": 0, "bidirectional": False}
        for name, default in {**defaults, "num_heads": 1, "backend": "auto"}.items():
            value = getattr(self, name)
            text += f", {name}={value}" if value != default else ""
        return text

    def forward(
        self,
        input: Union[Tensor, PackedSequence],
        hx: Optional[States] = None,
        *,
        lengths: Optional[Tensor] = None,
        resets: Optional[Tensor] = None,
    ) -> tuple[Any, States]:
        """Run over a batch of sequences.

        Args:
            input: [T, B, input_size], or [B, T, input_size] if batch_first; [T, input_size] for one sequence; or a
                PackedSequence, sorted or not.
            hx: initial states, [num_layers * num_directions, B, hidden_size] (without B for one sequence), in a tuple if the
                cell has several. None: zeros. With a PackedSequence its rows are in the order before packing.
            lengths: [B] integers in 0..T (for one sequence: no axis). After its length a row keeps its states, its output is
                0, and whatever stands in the padding has no influence. May lie on the CPU, where they are checked, and from
                where they are copied; on a GPU, and in compiled or exported calls, values outside that range are taken as
                the nearest one inside.
            resets: bool, shaped as input without its features. Where true, one sequence of that row ends and another begins
                with that step. Each is computed as if it were alone, in both directions: only the first of a row starts from
                hx forward, only the last backward, and final states are those of the last forward, of the first backward.

        Returns:
            output, shaped as input with num_directions * hidden_size features, or a PackedSequence; its dtype is autocast's
            within an autocast region, else that of input.
            Final states, shaped as hx and in its dtype if it is given, else in that of output. So a sequence in pieces loses
            nothing to 16 bits if the first piece starts from float32 zeros.

        Raises:
            FlashRNNError: an argument does not fit, as for `flashrnn.flashrnn()`.
        """
        weight = self.weight_ih_l0
        check_tensor("weight_ih_l0", weight)
        if isinstance(input, PackedSequence):
            check_packed(input, self.input_size, weight, lengths=lengths, resets=resets)
            packing = Packing(input)
            x = packing.unpack()
            output, last = self._run(x, "TB", self._initial_states(hx, x, "TB"), packing.lengths, None)
            return packing.pack(output), last if len(last) > 1 else last[0]
        axes = check_input(input, self.input_size, weight, self.batch_first)
        initial, lengths = self._initial_states(hx, input, axes), as_lengths(lengths, input, axes)
        resets = as_resets(resets, input, axes)
        x, layout = (input.unsqueeze(0), "BT") if axes == "T" else (input, axes)
        if lengths is not None:
            x = clear_padding(x, layout, lengths)
        output, last = self._run(x, layout, initial, lengths, resets)
        if axes == "T":
            output, last = output.squeeze(0), tuple(state.squeeze(1) for state in last)
        return output, last if len(last) > 1 else last[0]

    def _initial_states(self, hx: Optional[States], x: Tensor, axes: str) -> Optional[Tensor]:
        """hx as one tensor [NS, num_layers * num_directions, B, NH, D]."""
        states = as_states(hx, get_cell(self.function).states, (len(self._all_weights), self.hidden_size), x, axes)
        return None if states is None else states.unflatten(-1, (self.num_heads, self.head_dim))

    def _run(
        self, x: Tensor, layout: str, initial: Optional[Tensor], lengths: Optional[Tensor], resets: Optional[Tensor]
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output and final states, each [num_layers * num_directions, B, H]; x has the axes `layout` and features."""
        ways = directions(layout, x.shape[layout.index("T")], lengths, resets, self.bidirectional)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer > 0:
                x = dropout(x, self.dropout, self.training)
            outputs = []
            for way in ways:
                start = None if initial is None else initial[:, len(last)]
                output, end = self._run_layer(len(last), way.turn(x), start, way)
                outputs.append(way.turn(output))
                last.append(end)
            x = torch.cat(outputs, -1) if self.bidirectional else outputs[0]
        return x, tuple(map(torch.stack, zip(*last)))

    def _run_layer(self, k: int, x: Tensor, initial: Optional[Tensor], way: Direction) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Output and final states, each [B, H], of the kth layer and direction; initial states are [NS, B, NH, D]."""
        heads, names = (self.num_heads, self.head_dim), self._all_weights[k]
        weight_ih, weight_hh, *biases = (getattr(self, name) for name in names)
        for name, parameter, shape in zip(names, (weight_ih, weight_hh, *biases), self._parameter_shapes(x.shape[-1])):
            check_parameter(name, parameter, shape, x)
        Wx = linear(x, weight_ih).unflatten(-1, (-1, *heads))
        R = self._recurrent_order(weight_hh.unflatten(0, (-1, *heads)))  # [NR, NH, D, D]
        config = FlashRNNConfig(self.function, self.backend, input_shape=f"{way.layout}GHD", output_shape=f"S{way.layout}HD")
        states, last_states = flashrnn(
            Wx, R, self._bias(biases, R), initial, config=config, lengths=way.lengths, resets=way.resets
        )
        last = last_states.squeeze(1 + way.layout.index("T")).flatten(-2).unbind(0)
        return states[0].flatten(-2), last

    def _bias(self, biases: Sequence[Tensor], like: Tensor) -> Tensor:
        """b [NB, NH, D]: the sum of bias_ih, of the gates with an input part, and bias_hh, of those with a recurrent one."""
        gates, heads = len(get_cell(self.function).bias_gates), (self.num_heads, self.head_dim)
        if not biases:
            return like.new_zeros((gates, *heads))
        of_input, of_recurrent = (bias.unflatten(0, (-1, *heads)) for bias in biases)
        of_recurrent = self._recurrent_order(of_recurrent)
        return pad_gates(of_input, before=gates - len(of_input)) + pad_gates(of_recurrent, after=gates - len(of_recurrent))

    def _recurrent_order(self, x: Tensor) -> Tensor:
        """x, whose first axis are the recurrent gates in the order of the parameters, in the order of R."""
        return x
