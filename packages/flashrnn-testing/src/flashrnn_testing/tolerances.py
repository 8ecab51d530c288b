"""How far two backends may differ, by dtype: the one table."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Tolerance(NamedTuple):
    """Bounds on the difference of two results.

    Attributes:
        output: on norm(actual - expected) / norm(expected), for states.
        gradient: the same, for gradients.
        outlier: one element may be off by this many times as much, relative to its own size or the tensor's root mean
            square, whichever is larger.
    """

    output: float
    gradient: float
    outlier: float = 30.0


TOLERANCES: dict[torch.dtype, Tolerance] = {
    torch.float64: Tolerance(output=1e-12, gradient=1e-11),
    torch.float32: Tolerance(output=2e-6, gradient=6e-6),
    torch.float16: Tolerance(output=8e-4, gradient=2e-3),
    torch.bfloat16: Tolerance(output=5e-3, gradient=1.2e-2),
}
"""Twice what a backend may be away from float64 at T = 256, because both sides are. float64 is vanilla's alone."""
