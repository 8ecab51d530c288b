"""The checks of a layer's arguments, and the one form that they are brought into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, Optional

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from ..checks import check_lengths, check_size, check_tensor
from ..dtypes import DTYPES, FLOATING, autocast_is_on
from ..errors import ConfigError, DeviceError, DtypeError, ShapeError, describe
from ..layouts import spell

CAST_BY_AUTOCAST = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def check_options(sizes: Mapping[str, Any], flags: Mapping[str, Any], dropout: Any, proj_size: Any) -> list[int]:
    """Check the arguments of a layer's constructor: sizes and flags by name, among them hidden_size and num_heads.

    Returns:
        The sizes, as integers of Python.
    """
    checked = [check_size(name, value, 1) for name, value in sizes.items()]
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise ConfigError(describe(name, "True or False", repr(value)))
    if isinstance(dropout, bool) or not isinstance(dropout, Real) or not 0 <= float(dropout) <= 1:
        raise ConfigError(describe("dropout", "a probability, from 0 to 1", repr(dropout)))
    if proj_size != 0:
        todo = "torch.nn.LSTM has a projection of h, flashrnn.nn has none."
        raise ConfigError(describe("proj_size", "0", repr(proj_size), todo))
    hidden_size, num_heads = sizes["hidden_size"], sizes["num_heads"]
    if hidden_size % num_heads:
        raise ConfigError(describe("num_heads", f"a divisor of hidden_size = {hidden_size}", repr(num_heads)))
    return checked


def check_input(x: Any, input_size: int, weight: Tensor, batch_first: bool) -> str:
    """The axes of an input without its features: "BT", "TB", or "T" for one sequence."""
    check_tensor("input", x)
    batch = "BT" if batch_first else "TB"
    if x.ndim not in (2, 3) or x.shape[-1] != input_size:
        wanted = f"shape {_input(batch)} or {_input('T')} with input_size = {input_size}"
        raise ShapeError(describe("input", wanted, f"shape {list(x.shape)}"))
    _check_like("input", x, weight)
    return batch if x.ndim == 3 else "T"


def check_packed(packed: PackedSequence, input_size: int, weight: Tensor, **others: Optional[Tensor]) -> None:
    """Check a PackedSequence, beside which there is none of these other arguments."""
    for name, x in others.items():
        if x is not None:
            rest = "lengths" if name == "lengths" else f"lengths and {name}"
            todo = f"Give the padded batch, which pad_packed_sequence makes, with {rest}."
            raise ConfigError(describe(name, "None with a PackedSequence", type(x).__name__, todo))
    data = packed.data
    if data.ndim != 2 or data.shape[1] != input_size:
        wanted = f"data of shape [rows, input_size] with input_size = {input_size}"
        raise ShapeError(describe("input", wanted, f"shape {list(data.shape)}"))
    _check_like("input", data, weight)


def check_parameter(name: str, parameter: Any, shape: tuple[int, ...], x: Tensor) -> None:
    """A parameter, which the user may have exchanged, is a tensor of that shape on the device of the input x."""
    check_tensor(name, parameter)
    if parameter.shape != shape:
        axes = ("gates * hidden_size", "head_dim" if name.startswith("weight_hh") else "features")[: len(shape)]
        wanted = f"shape [{', '.join(axes)}] = {list(shape)}"
        raise ShapeError(describe(name, wanted, f"shape {list(parameter.shape)}"))
    _check_device(name, parameter, x.device)


def as_lengths(lengths: Any, x: Tensor, axes: str) -> Optional[Tensor]:
    """`lengths` as [B] int64 on the device of the input x, whose axes are `axes` and features."""
    if lengths is None:
        return None
    check_tensor("lengths", lengths)
    if lengths.dtype not in INTEGERS:
        raise DtypeError(describe("lengths", "an integer tensor", str(lengths.dtype)))
    _check_shape("lengths", lengths, axes.replace("T", ""), x, axes)
    lengths = check_lengths(lengths, x.shape[axes.index("T")])
    return lengths.reshape(-1).to(x.device)


def as_resets(resets: Any, x: Tensor, axes: str) -> Optional[Tensor]:
    """`resets` as [B, T] bool, for the input x, whose axes are `axes` and features."""
    if resets is None:
        return None
    check_tensor("resets", resets)
    if resets.dtype != torch.bool:
        raise DtypeError(describe("resets", "a bool tensor", str(resets.dtype), "Write resets.bool()."))
    _check_shape("resets", resets, axes, x, axes)
    _check_device("resets", resets, x.device)
    return resets.unsqueeze(0) if axes == "T" else resets.T if axes == "TB" else resets


def as_states(hx: Any, names: Sequence[str], sizes: tuple[int, int], x: Tensor, axes: str) -> Optional[Tensor]:
    """`hx` as one tensor [NS, num_layers * num_directions, B, hidden_size], of which `sizes` are the second and the last."""
    if hx is None:
        return None
    several = len(names) > 1
    given = hx if several else [hx]
    if not isinstance(given, (tuple, list)) or len(given) != len(names):
        wanted = f"a tuple ({', '.join(f'{name}_0' for name in names)})"
        got = f"one of {len(given)}" if isinstance(given, (tuple, list)) else type(given).__name__
        raise DtypeError(describe("hx", wanted, got))
    for k, state in enumerate(given):
        _check_state(f"hx[{k}]" if several else "hx", state, sizes, x, axes)
    states = torch.stack(given) if several else given[0].unsqueeze(0)
    return states.unsqueeze(2) if axes == "T" else states


def _check_state(name: str, state: Any, sizes: tuple[int, int], x: Tensor, axes: str) -> None:
    check_tensor(name, state)
    if state.dtype not in FLOATING:
        raise DtypeError(describe(name, f"a tensor of {', '.join(DTYPES)}", str(state.dtype)))
    letters, batch = ("", []) if axes == "T" else ("B, ", [x.shape[axes.index("B")]])
    expected = [sizes[0], *batch, sizes[1]]
    if list(state.shape) != expected:
        wanted = f"shape [num_layers * num_directions, {letters}hidden_size] = {expected}"
        raise ShapeError(describe(name, wanted, f"shape {list(state.shape)}"))
    _check_device(name, state, x.device)


def _check_like(name: str, x: Tensor, weight: Tensor) -> None:
    """x lies where the weights are, and has their dtype unless autocast casts both, which it does not from float64."""
    if weight.is_meta and not x.is_meta:
        todo = "Give the module memory first, by module.to_empty(device=...)."
        raise DeviceError(describe("weight_ih_l0", f"a tensor on {x.device}, as {name} is", "one on meta", todo))
    _check_device(name, x, weight.device, "the weights are")
    are_cast = x.dtype in CAST_BY_AUTOCAST and weight.dtype in CAST_BY_AUTOCAST and autocast_is_on(x.device.type)
    if x.dtype != weight.dtype and not are_cast:
        todo = f"Write {name}.to({weight.dtype}), or convert the module."
        raise DtypeError(describe(name, f"{weight.dtype}, as the weights have", str(x.dtype), todo))


def _check_device(name: str, x: Tensor, device: torch.device, why: str = "input is") -> None:
    if x.device != device:
        raise DeviceError(describe(name, f"a tensor on {device}, as {why}", f"one on {x.device}", "Move it first."))


def _check_shape(name: str, x: Tensor, layout: str, like: Tensor, axes: str) -> None:
    """x has the axes `layout` of `like`, whose first are `axes`."""
    expected = [like.shape[axes.index(letter)] for letter in layout]
    if list(x.shape) != expected:
        wanted = f"shape {spell(layout)} = {expected} for an input of {_input(axes)}"
        raise ShapeError(describe(name, wanted, f"shape {list(x.shape)}"))


def _input(axes: str) -> str:
    """The shape of an input in words."""
    return spell(axes)[:-1] + ", input_size]"
