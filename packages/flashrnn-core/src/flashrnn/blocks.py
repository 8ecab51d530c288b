"""How many steps are read, or written, at once: a few large operations instead of many small ones."""

from __future__ import annotations

from .problem import Problem

BLOCK = 2**16
"""Elements [NH, B, D] of so many steps are small enough for a cache, and large enough for several threads."""


def block_length(problem: Problem) -> int:
    """The number of steps."""
    return max(1, BLOCK // max(1, problem.num_heads * problem.batch_size * problem.head_dim))
