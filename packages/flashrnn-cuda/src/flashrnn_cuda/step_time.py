"""A model of the time of a step of cuda_fused in nanoseconds, fed by figures that were measured on an H200."""

from __future__ import annotations

CLOCK_GHZ = 1.75
MMA_CLOCKS, SHARED_BYTES_A_CLOCK = 8, 128
"""A call of mma on one of an SM's four tensor cores; what shared memory yields."""

SPLIT_NS = {"cluster": 100, "grid": 50}
"""Adding up the products of a team."""

COLUMN_NS = 200
"""The pointwise step of 8 more batch rows, a block of units."""

LOCAL_NS = ((0, 200),)
CLUSTER_NS = ((2048, 385), (4096, 466), (8192, 601), (12288, 680), (16384, 765))
GRID_NS, GRID_CTA_NS = ((8192, 910), (12288, 1010), (16384, 1150), (49152, 1910), (65536, 2180)), 4
"""What a step takes besides its product, by bytes that are handed to each CTA, and for each CTA.

Fitted to whole passes that were measured on an H200, see benchmarks/LOG.md.
"""


def product_ns(steps: int, tiles: int, warps: int, rest_bytes: int) -> float:
    """The product of one CTA, of which rest_bytes of R come from shared memory."""
    rounds = -(-warps // 4)
    return (rounds * steps * tiles * MMA_CLOCKS + rest_bytes / SHARED_BYTES_A_CLOCK) / CLOCK_GHZ


def besides_ns(exchange: str, ctas: int, handed: int) -> float:
    """The pointwise step, and until what the CTAs of a tile hand to each other, so many bytes to each, is there."""
    if exchange == "grid":
        return interpolate(GRID_NS, handed) + GRID_CTA_NS * ctas
    return interpolate(CLUSTER_NS if exchange == "cluster" else LOCAL_NS, handed)


def interpolate(table: tuple[tuple[int, float], ...], x: int) -> float:
    """The value at x of a line through the points of a table, its last piece extended; the first one's before it."""
    last = next((i for i, (place, _) in enumerate(table) if x <= place), len(table) - 1)
    if last == 0:
        return table[0][1]
    (x0, y0), (x1, y1) = table[last - 1], table[last]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)
