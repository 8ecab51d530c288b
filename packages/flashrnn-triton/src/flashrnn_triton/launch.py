"""What the kernels are launched with: sizes and strides at run time, the rest as constants."""

from __future__ import annotations

from math import gcd
from typing import Any, Optional

import torch
from torch import Tensor

from flashrnn.problem import Problem

from .availability import is_interpreted
from .plan import block_of

SIZES = ("B", "T", "NH")


def run_time(**axes: str) -> list[str]:
    """The names of the integers that no kernel is compiled for: sizes, and by tensor one stride an axis."""
    return [*SIZES, *(f"{name}_{axis}" for name, order in axes.items() for axis in order)]


def sizes(problem: Problem) -> dict[str, int]:
    """B, T and NH."""
    return dict(zip(SIZES, (problem.batch_size, problem.sequence_size, problem.num_heads)))


def strides(problem: Problem, **tensors: tuple[Optional[Tensor], str]) -> dict[str, int]:
    """Strides by name, in multiples of UNIT, and UNIT: as many elements as can be moved at once in all these tensors.

    Args:
        tensors: by name the tensor, if there is one, and the letters of its axes but the last, whose stride is 1.
    """
    found = {
        f"{name}_{axis}": 0 if x is None or size == 1 else stride
        for name, (x, order) in tensors.items()
        for axis, size, stride in zip(order, order if x is None else x.shape, [0] * len(order) if x is None else x.stride())
    }
    unit = gcd(16 // problem.dtype.itemsize, problem.head_dim, *found.values())
    return {**{name: stride // unit for name, stride in found.items()}, "UNIT": unit}


def contiguous(x: Optional[Tensor]) -> Optional[Tensor]:
    """x in the order of its axes; small tensors only."""
    return None if x is None else x.contiguous()


def as_float(clipval: Optional[float]) -> Optional[float]:
    """A bound as a float, for an integer would be compiled for."""
    return None if clipval is None else float(clipval)


def as_bytes(resets: Optional[Tensor]) -> Optional[Tensor]:
    """Contiguous, and as numbers."""
    return None if resets is None else resets.contiguous().view(torch.int8)


def constants(problem: Problem) -> dict[str, Any]:
    """What the cell and the head dimension are, and how exact functions are; the interpreter knows no instructions."""
    cell = problem.cell
    return {
        "CELL": cell.name,
        "NS": cell.num_states,
        "NG": len(cell.gates),
        "NR": len(cell.recurrent_gates),
        "NW": len(cell.input_gates),
        "NB": len(cell.bias_gates),
        "NK": len(cell.saved),
        "MATH": "float32" if is_interpreted() else str(problem.dtype).removeprefix("torch."),
        **head_constants(problem),
    }


def head_constants(problem: Problem) -> dict[str, Any]:
    """The head dimension, padded to what products take; and float32 means float32."""
    return {
        "D": problem.head_dim,
        "BLOCK_D": block_of(problem.head_dim),
        "PRECISION": "ieee" if problem.dtype == torch.float32 else "tf32",
    }
