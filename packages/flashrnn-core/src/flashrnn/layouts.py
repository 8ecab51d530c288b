"""Axis orders, written in letters: S states, B batch, T time, G gates, H heads, D head dimension; 1 is an axis of size 1."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

INPUT = "BTGHD"
OUTPUT = "SBTHD"
INPUT_SHAPES = (INPUT, "TBGHD")
OUTPUT_SHAPES = (OUTPUT, "STBHD")

LETTERS = {"S": "NS", "B": "B", "T": "T", "G": "NG", "H": "NH", "D": "D", "1": "1"}


def rearrange(x: Tensor, source: str, target: str) -> Tensor:
    """A view of x with its axes, named by the letters of `source`, in the order of `target`."""
    return x if source == target else x.permute(*map(source.index, target))


def shape_of(layout: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a layout: shape_of("BT", {"B": 2, "T": 3}) is (2, 3)."""
    return tuple([sizes[letter] for letter in layout])


def spell(layout: str) -> str:
    """A layout as people write it: spell("BTGHD") is "[B, T, NG, NH, D]"."""
    return "[" + ", ".join(LETTERS.get(letter, letter) for letter in layout) + "]"
