"""What is timed: the cases, and the named sweeps over them, as data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from flashrnn.cells import CELLS

Shape = tuple[int, int, int, int]
"""NH, D, B, T."""

DTYPES = ("float16", "bfloat16", "float32")


class Case(NamedTuple):
    """One problem; its fields are the first columns of a result file."""

    function: str
    NH: int
    D: int
    B: int
    T: int
    dtype: str

    def __str__(self) -> str:
        return f"{self.function} {self.NH}x{self.D}, B {self.B}, T {self.T}, {self.dtype}"


HEAD_DIM: tuple[Shape, ...] = (
    (48, 16, 16, 1024),
    (24, 32, 16, 1024),
    (12, 64, 16, 1024),
    (6, 128, 16, 1024),
    (3, 256, 16, 1024),
    (1, 768, 16, 1024),
)
BATCH: tuple[Shape, ...] = tuple((NH, D, 2**k, 1024) for NH, D in ((12, 64), (1, 768)) for k in range(1, 9))
TIME: tuple[Shape, ...] = tuple((12, 64, 16, T) for T in (256, 512, 1024, 2048))
TABLE: dict[str, tuple[Shape, ...]] = {
    "lstm": (
        (12, 64, 16, 1024),
        (6, 128, 16, 1024),
        (3, 256, 16, 1024),
        (1, 512, 16, 1024),
        (1, 768, 16, 1024),
        (1, 1024, 16, 1024),
        (1, 768, 64, 1024),
        (1, 768, 256, 1024),
        (1, 768, 1, 1024),
        (1, 2048, 16, 1024),
    ),
    "gru": ((12, 64, 16, 1024), (1, 768, 16, 1024)),
    "elman": ((12, 64, 16, 1024), (1, 768, 16, 1024)),
    "slstm": ((12, 64, 16, 1024), (4, 128, 16, 1024), (1, 768, 16, 1024)),
}
"""The rows for which there are goals."""

SWEEPS: dict[str, dict[str, tuple[Shape, ...]]] = {
    "head-dim": dict.fromkeys(CELLS, HEAD_DIM),
    "batch": dict.fromkeys(CELLS, BATCH),
    "time": dict.fromkeys(CELLS, TIME),
    "table": TABLE,
}
"""Shapes by sweep and function."""


def cases_of(sweeps: Iterable[str], functions: Iterable[str], dtypes: Iterable[str]) -> list[Case]:
    """All cases of these sweeps, each once: sweeps share some."""
    sweeps, functions = list(sweeps), list(functions)
    found = [
        Case(function, *shape, dtype)
        for dtype in dtypes
        for function in functions
        for sweep in sweeps
        for shape in SWEEPS[sweep][function]
    ]
    return list(dict.fromkeys(found))


def positive(text: str) -> int:
    """An integer above 0."""
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value
