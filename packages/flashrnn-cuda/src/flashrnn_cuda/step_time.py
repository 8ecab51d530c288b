"""A model of the time of a step of cuda_fused in nanoseconds, fitted to whole passes that were measured on an H200.

What was measured is in benchmarks/LOG.md, `python -m benchmarks.expected` holds the model against a result file.
"""

from __future__ import annotations

from typing import NamedTuple

CLOCK_GHZ = 1.75
TENSOR_CORES, MMA_CLOCKS, SHARED_BYTES_A_CLOCK = 4, 8, 128
"""Of an SM; a call of mma on one of them; what shared memory yields."""

ALONE = 1.5
"""How many times as long as mma takes a warp that has a tensor core to itself, with nobody to hide its latency behind."""

LOOK_BYTES = 16
"""Of a mailbox at a time."""

LOCAL_NS = ((0, 200),)
HANDED_NS = ((2048, 315), (4096, 396), (8192, 580), (12288, 960), (16384, 1200))
SUMMED_NS = ((4096, 397), (8192, 584), (16384, 900), (24576, 1294))
"""What a step takes besides its product: on one SM; in a cluster by bytes that are handed, or sent as sums, to each CTA."""
SPLIT_NS, COLUMN_NS = 100, 200
"""There: adding up the products of a team; the pointwise step of 8 more batch rows, a block of units."""


class Step(NamedTuple):
    """What one CTA does in a step.

    Attributes:
        warps, mma_calls: that multiply, on four tensor cores; what each calls.
        weight_bytes, operand_bytes: what they read from shared memory for the product: of R, of the other factor.
        sum_bytes: of what they have multiplied, from the warps that have it to those that add it up.
        is_split: whether they add up what they have multiplied.
        is_forward: on the way forward.
        gates, blocks, columns: gates of a unit, blocks of 8 units, and of 8 batch rows, that a warp takes through the
            pointwise step.
        sources: CTAs that it gathers from.
        handed, summed: bytes that others hand to it, of what it multiplies, and of sums.
        looks: at the mailbox, a thread.
    """

    warps: int
    mma_calls: int
    weight_bytes: int
    operand_bytes: int
    sum_bytes: int
    is_split: bool
    is_forward: bool
    gates: int
    blocks: int
    columns: int
    sources: int
    handed: int
    looks: int
    summed: int


def step_ns(exchange: str, step: Step) -> float:
    """The time of a step by an exchange."""
    mma = step.mma_calls * MMA_CLOCKS / CLOCK_GHZ
    weights = step.weight_bytes / SHARED_BYTES_A_CLOCK / CLOCK_GHZ
    more_columns = step.blocks * (step.columns - 1)
    adding = SPLIT_NS if step.is_split else 0
    handed, summed = step.handed / 1024, step.summed / 1024
    # What goes through L2: each number is fitted.
    multiplying = max(step.warps / TENSOR_CORES, ALONE) * mma
    if exchange == "mailed" and not step.is_forward:
        return 680 + 34.4 * handed + 20 * step.looks
    if exchange == "mailed":
        sums = 2 * step.sum_bytes / SHARED_BYTES_A_CLOCK / CLOCK_GHZ
        product = 0.65 * multiplying + weights + sums
        return 610 + 1.75 * step.sources + 2 * handed + 65 * step.looks + product + 300 * more_columns
    if exchange in ("grid", "clusters"):
        operand = step.operand_bytes / SHARED_BYTES_A_CLOCK / CLOCK_GHZ
        product = max(multiplying, weights + operand)
        if exchange == "grid":
            waiting = 700 + 3.9 * step.sources + 4 * handed + 32 * step.looks
            return waiting + 1.6 * product + 35 * step.gates * (step.blocks - 1) + 190 * more_columns
        return 850 + adding + 0.8 * product + 50 * handed + 55 * summed + 115 * more_columns
    product = -(-step.warps // TENSOR_CORES) * mma + weights
    besides = LOCAL_NS if exchange == "local" else HANDED_NS if step.handed else SUMMED_NS
    return interpolate(besides, step.handed + step.summed) + product + adding + COLUMN_NS * more_columns


def interpolate(table: tuple[tuple[int, float], ...], x: int) -> float:
    """The value at x of a line through the points of a table, its last piece extended; the first one's before it."""
    last = next((i for i, (place, _) in enumerate(table) if x <= place), len(table) - 1)
    if last == 0:
        return table[0][1]
    (x0, y0), (x1, y1) = table[last - 1], table[last]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
