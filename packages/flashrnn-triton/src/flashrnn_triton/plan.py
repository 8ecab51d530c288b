"""How a problem is cut into programs, and what the compiler is told: pure functions, settled by measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import triton

from flashrnn.problem import Problem

from .availability import is_interpreted

TRITON = tuple(int(part) for part in triton.__version__.split(".")[:2])
"""The compiler's version."""

SMALL_TILES = TRITON >= (3, 5)
"""Whether the compiler takes products with fewer than 16 columns."""


FUSES_MULTIPLY_ADD = False
"""Whether the compiler may fuse multiplications with additions. Which it does changes with all that stands around, so that
calls which ask for other gradients, or bring other strides, would differ in the last bits; it saves no instructions here."""


class Tuning(NamedTuple):
    """How a kernel that loops over time is launched.

    Attributes:
        units: of a head, padded to what products take.
        rows: batch rows a program, a power of two.
        warps: a program.
        stages: steps that are on their way from global memory at once; 1 reads each step when it is due.
    """

    units: int
    rows: int
    warps: int
    stages: int

    def keywords(self) -> dict[str, Any]:
        """As the kernels take it."""
        return {
            "BLOCK_B": self.rows,
            "SHARES": min(self.warps, self.units // 16),
            "STAGES": self.stages,
            "num_warps": self.warps,
            "enable_fp_fusion": FUSES_MULTIPLY_ADD,
        }


class WeightTuning(NamedTuple):
    """How the kernel of the gradient of R is launched.

    Attributes:
        parts: programs that share the rows and steps of one gate and head.
        size: rows and steps of a part, a multiple of `block`.
        block: rows and steps at a time.
        warps, stages: as in Tuning.
    """

    parts: int
    size: int
    block: int
    warps: int
    stages: int

    def keywords(self) -> dict[str, Any]:
        """As the kernel takes it."""
        return {
            "SIZE": self.size,
            "BLOCK_K": self.block,
            "STAGES": self.stages,
            "num_warps": self.warps,
            "enable_fp_fusion": FUSES_MULTIPLY_ADD,
        }


_forced: dict[str, Any] = {}


@contextmanager
def forced(**options: Any) -> Iterator[None]:
    """Tunings with these fields instead of their own, on all threads: for tests and measurements."""
    _forced.update(options)
    try:
        yield
    finally:
        _forced.clear()


def block_of(head_dim: int) -> int:
    """head_dim padded to what products take."""
    return max(16, 1 << (head_dim - 1).bit_length())


def plan(problem: Problem, direction: str) -> Tuning:
    """The tuning of the kernel that loops over time, "forward" or "backward".

    In 16 bits a warp has 16 units of 8 rows; forward, but for slstm, which has more states, 32, which was faster on an H200.
    In float32, whose products take more registers and whose R alone takes most of the shared memory, it has 8. Masks take
    registers too: they leave room for one step less on its way. Triton 3.0 fails where a tile is to be on its way.
    """
    rows = 64 if is_interpreted() else 8 if SMALL_TILES else 16  # an interpreter takes as long for a small tile
    units = block_of(problem.head_dim)
    warps = units * rows // 128
    if problem.dtype == torch.float32:
        return Tuning(units, rows, 2 * warps, stages=1)._replace(**_forced)
    if SMALL_TILES and direction == "forward" and problem.cell.num_states <= 2:
        warps = max(1, warps // 2)
    stages = 1 if not SMALL_TILES else 2 if problem.has_lengths or problem.has_resets else 3
    return Tuning(units, rows, warps, stages)._replace(**_forced)


def programs(problem: Problem, tuning: Tuning) -> int:
    """Heads times tiles of batch rows."""
    return problem.num_heads * -(-problem.batch_size // tuning.rows)


PROGRAMS, SMALLEST_PART, BLOCK = 1024, 512, 64


def plan_weights(problem: Problem, gates: int) -> WeightTuning:
    """The tuning of the kernel of the gradient of R: enough programs for any GPU, few enough to add up."""
    total = problem.batch_size * problem.sequence_size
    most = max(1, min(total // SMALLEST_PART, PROGRAMS // (gates * problem.num_heads)))
    size = -(-total // (most * BLOCK)) * BLOCK
    return WeightTuning(-(-total // size), size, BLOCK, warps=4, stages=3)
