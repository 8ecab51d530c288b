"""The one validator of tensor arguments, shared by all backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod
from numbers import Integral
from typing import Any, Optional, Union

import torch
from torch import Tensor

from .cells import CellSpec, get_cell
from .config import FlashRNNConfig
from .dtypes import DTYPES, FLOATING
from .errors import ConfigError, DeviceError, DtypeError, ShapeError, describe
from .layouts import LETTERS, shape_of, spell

States = Union[Tensor, Mapping[str, Tensor]]


def check_inputs(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Optional[States],
    lengths: Optional[Tensor],
    resets: Optional[Tensor],
    config: FlashRNNConfig,
) -> Optional[Tensor]:
    """Check every tensor of a call; return the initial states as one tensor [NS, B, NH, D], or None for zeros.

    Raises:
        ShapeError, DtypeError, DeviceError: naming the argument, the expected shape in letters and numbers, and what came.
    """
    cell = get_cell(config.function)
    for name, x in (("Wx", Wx), ("R", R), ("b", b)):
        _check_floating(name, x)
    sizes = _sizes(Wx, R, b, cell, config.input_shape)
    _check_shape("Wx", Wx, config.input_shape, sizes, "gates", cell.input_gates, config.input_shape)
    sizes["G"] = len(cell.recurrent_gates)
    _check_shape("R", R, "GHDD", sizes, "gates", cell.recurrent_gates)
    sizes["G"] = len(cell.bias_gates)
    _check_shape("b", b, "GHD", sizes, "gates", cell.bias_gates)
    initial = None if states is None else _check_states(states, cell, sizes, config, Wx)
    if lengths is not None:
        check_tensor("lengths", lengths)
        if lengths.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
            raise DtypeError(describe("lengths", "an integer tensor", str(lengths.dtype)))
        _check_shape("lengths", lengths, "B", sizes)
    if resets is not None:
        check_tensor("resets", resets)
        if resets.dtype != torch.bool:
            raise DtypeError(describe("resets", "a bool tensor", str(resets.dtype), "Write resets.bool()."))
        _check_shape("resets", resets, "BT", sizes, "[B, T] whatever input_shape, here", [repr(config.input_shape)])
    for name, given in (("R", R), ("b", b), ("states", initial), ("lengths", lengths), ("resets", resets)):
        if given is not None and given.device != Wx.device:
            raise DeviceError(
                describe(name, f"a tensor on {Wx.device}, as Wx is", f"one on {given.device}", "Move it first.")
            )
    return initial


def check_size(name: str, value: Any, least: int) -> int:
    """The value, an integer or one of numpy's, as an int; a ConfigError unless it is at least that."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ConfigError(describe(name, f"an integer of at least {least}", repr(value)))
    return int(value)


def check_tensor(name: str, x: Any) -> None:
    """A DtypeError unless x is a dense tensor."""
    if not isinstance(x, Tensor):
        raise DtypeError(describe(name, "a tensor", type(x).__name__))
    if x.is_nested:
        raise DtypeError(describe(name, "a dense tensor", "a nested one", "torch.nested.to_padded_tensor makes one."))
    if x.layout != torch.strided:
        raise DtypeError(describe(name, "a dense tensor", f"one of layout {x.layout}", f"Write {name}.to_dense()."))


def check_lengths(lengths: Tensor, sequence_size: int) -> Tensor:
    """`lengths` as int64 within 0..T; held to it unread on a GPU, where the host would wait, in graphs and in torch.vmap."""
    lengths = lengths.to(torch.int64)
    if lengths.device.type == "cpu" and lengths.numel() > 0 and not (torch.compiler.is_compiling() or is_mapped(lengths)):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > sequence_size:
            raise ShapeError(describe("lengths", f"values from 0 to T = {sequence_size}", f"values from {low} to {high}"))
    return lengths.clamp(0, sequence_size)


def is_mapped(x: Tensor) -> bool:
    """Whether torch.vmap runs over x, at any level of torch.func's transforms."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x):
            return True
        x = functorch.get_unwrapped(x)
    return False


def _sizes(Wx: Tensor, R: Tensor, b: Tensor, cell: CellSpec, input_shape: str) -> dict[str, int]:
    """Size by axis letter: B and T from Wx, the rest from the cell; NH and D by majority of Wx, R and b."""
    in_Wx, in_R, in_b = Wx.shape, R.shape, b.shape
    if len(in_Wx) != len(input_shape):
        todo = _flat_hint(in_Wx, in_R, len(cell.input_gates))
        raise ShapeError(describe("Wx", f"{len(input_shape)} axes {spell(input_shape)}", f"shape {list(in_Wx)}", todo))
    if len(in_R) != 4 or in_R[2] != in_R[3]:
        todo = "R[g, n, out, in] is one square matrix for each gate and head."
        raise ShapeError(describe("R", "4 axes [NG, NH, D, D]", f"shape {list(in_R)}", todo))
    if in_R[1] < 1 or in_R[2] < 1:
        raise ShapeError(describe("R", "at least one head and a head dimension of at least 1", f"shape {list(in_R)}"))
    sizes = dict(zip(input_shape, in_Wx))
    _, NH, D = in_b if len(in_b) == 3 else (None, None, None)
    if sizes["H"] != NH:
        sizes["H"] = in_R[1]
    if sizes["D"] != D:
        sizes["D"] = in_R[2]
    sizes["G"] = len(cell.input_gates)
    sizes["S"] = cell.num_states
    sizes["1"] = 1
    return sizes


def _check_shape(
    name: str,
    x: Tensor,
    layout: str,
    sizes: Mapping[str, int],
    kind: str = "",
    names: Sequence[str] = (),
    option: str = "",
) -> None:
    """A ShapeError unless x has that shape; `kind` and `names` go into the error, to say what an axis counts."""
    expected = shape_of(layout, sizes)
    if tuple(x.shape) == expected:
        return
    note = f" ({kind} {_names(names)})" if kind else ""
    wanted = f"shape {spell(layout)} = {list(expected)}{note}"
    raise ShapeError(describe(name, wanted, f"shape {list(x.shape)}", _swap_hint(tuple(x.shape), layout, expected, option)))


def _swap_hint(got: tuple[int, ...], layout: str, expected: tuple[int, ...], option: str) -> str:
    """A sentence when exchanging two axes of what came would give what is expected.

    With `option`, T is expected to be what it is in Wx itself: whatever stands where T and another axis were exchanged.
    """
    if len(got) != len(expected):
        return ""
    found = []
    for one, other in combinations(range(len(got)), 2):
        swapped = list(got)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        if all(x == y or (option and letter == "T") for x, y, letter in zip(swapped, expected, layout)):
            found.append(f"{LETTERS[layout[one]]} and {LETTERS[layout[other]]}")
    if not found:
        return ""
    likely = next((axes for axes in found if "T" not in axes.split()), found[0])
    return f"The axes {likely} look swapped" + (f" for input_shape {option!r}." if option else ".")


def _flat_hint(Wx: torch.Size, R: torch.Size, gates: int) -> str:
    """A sentence when a Wx of too few axes has the last of them in one."""
    if len(R) != 4 or len(Wx) not in (3, 4):
        return ""
    features = (gates, R[1], R[2])[len(Wx) - 3 :]
    if Wx[-1] == prod(features):
        return f"Write Wx.unflatten(-1, {features}), if its features are in that order."
    if len(Wx) == 3 and Wx[1] == prod(features):
        return "Its last two axes look swapped, of which NG, NH and D have to be the last."
    return ""


def _check_states(
    states: States, cell: CellSpec, sizes: Mapping[str, int], config: FlashRNNConfig, Wx: Tensor
) -> Optional[Tensor]:
    """Initial states in any of the accepted forms as one tensor [NS, B, NH, D]."""
    if isinstance(states, Mapping):
        return _stack_states(states, cell, sizes, Wx)
    several: Any = states
    if isinstance(several, (tuple, list)):
        todo = f"Write torch.stack(states), or a mapping by name: {_names(cell.states)}."
        raise DtypeError(describe("states", "a tensor or a mapping by name", type(several).__name__, todo))
    _check_floating("states", states)
    return _without_time("states", states, config.output_shape.replace("T", "1"), sizes, Wx, "states", cell.states)


def _stack_states(states: Mapping[str, Tensor], cell: CellSpec, sizes: Mapping[str, int], Wx: Tensor) -> Optional[Tensor]:
    unknown = [name for name in states if name not in cell.states]
    if unknown:
        raise ShapeError(describe("states", f"names among {_names(cell.states)} for {cell.name}", _names(map(str, unknown))))
    given = {}
    for name, x in states.items():
        _check_floating(f"states[{name!r}]", x)
        given[name] = _without_time(f"states[{name!r}]", x, "B1HD", sizes, Wx)
    if not given:
        return None
    dtype = next(iter(given.values())).dtype
    for x in given.values():
        dtype = torch.promote_types(dtype, x.dtype)
    zeros = torch.zeros(shape_of("BHD", sizes), dtype=dtype, device=Wx.device)
    return torch.stack([given[name].to(dtype) if name in given else zeros for name in cell.states])


def _without_time(
    name: str, x: Tensor, layout: str, sizes: Mapping[str, int], Wx: Tensor, kind: str = "", names: Sequence[str] = ()
) -> Tensor:
    """x, given with or without a time axis of size 1, without it."""
    short = layout.replace("1", "")
    if x.ndim == len(layout):
        _check_shape(name, x, layout, sizes, kind, names)
        x = x.squeeze(layout.index("1"))
    else:
        _check_shape(name, x, short, sizes, kind, names)
    if x.device != Wx.device:
        raise DeviceError(describe(name, f"a tensor on {Wx.device}, as Wx is", f"one on {x.device}", "Move it first."))
    return x


def _check_floating(name: str, x: Any) -> None:
    check_tensor(name, x)
    if x.dtype not in FLOATING:
        raise DtypeError(describe(name, f"a tensor of {', '.join(DTYPES)}", str(x.dtype)))


def _names(names: Any) -> str:
    return ", ".join(names)
