"""How to lay a problem out on a GPU: a pure function of plain facts, so that it can be tried for GPUs that are not there.

What is possible is found for every exchange and number of CTAs; of that, the plan takes what a model of the time of a step, fed by
measured figures, says is fastest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Optional, Union

from flashrnn.cells import CellSpec

from .device import Device

ROWS = 8
"""Batch rows of a tile: the columns of one product on the tensor cores."""

UNITS = 8
"""Units of a block: the rows of half a tile."""

MMA_BYTES = 32
"""Bytes along k that one call of mma consumes."""

STAGES = (8, 6, 4, 3)
TRANSFER_WARPS = 4
PADDING = 16
"""Bytes between rows in shared memory, against bank conflicts."""

BLOCKS = (1, 2)

OVERHEAD = {("forward", 1): 72, ("forward", 2): 120, ("backward", 1): 100, ("backward", 2): 124}
"""Registers a thread needs besides those that hold R, by direction and blocks a warp: found by compiling, none spills."""
SPLIT_OVERHEAD = 56
"""The same, on top, where a float32 product is made of three."""

CLUSTER_SIZES = (2, 4, 8, 16)


@dataclass(frozen=True)
class Layout:
    """One fused kernel.

    Attributes:
        exchange: how CTAs hand each other what the next step reads; "local": there is but one.
        ctas: how many share a head and a tile of batch rows.
        D: head_dim rounded up.
        blocks: blocks of 8 units that a warp owns.
        kept: steps along k whose part of R stays in registers; the others' is in shared memory.
        transfer_warps, stages: warps that move data, steps that they run ahead.
        threads, shared_bytes: of a CTA.
        step_ns: expected time of a step in nanoseconds.
    """

    exchange: str
    ctas: int
    D: int
    blocks: int
    kept: int
    transfer_warps: int
    stages: int
    threads: int
    shared_bytes: int
    step_ns: float


@dataclass(frozen=True)
class Pass:
    """What a plan is made for.

    Attributes:
        direction: "forward" or "backward".
        cell: what is computed.
        item_bytes: of an element.
        head_dim: D.
        groups: heads times tiles of batch rows.
    """

    direction: str
    cell: CellSpec
    item_bytes: int
    head_dim: int
    groups: int

    @property
    def moved_states(self) -> int:
        """States that are moved a step: all that come out (forward); those read and the gradients that come in (backward)."""
        cell = self.cell
        return cell.num_states + (0 if self.direction == "forward" else cell.num_states - len(cell.constant_states))


def round_up(x: int, multiple: int) -> int:
    """The next multiple that is not less than x."""
    return -(-x // multiple) * multiple


def tiles_of(batch_size: int) -> int:
    """Tiles of batch rows."""
    return -(-batch_size // ROWS)


def plan(wanted: Pass, device: Device, exchange: Optional[str] = None, ctas: Optional[int] = None) -> Union[Layout, str]:
    """The layout of a fused pass, or why there is none.

    Args:
        wanted: what to plan for.
        device: where.
        exchange, ctas: None: whatever is fastest; else this one, for tests.
    """
    found = [
        x for x in layouts(wanted, device) if exchange in (None, x.exchange) and ctas in (None, x.ctas)
    ]  # fmt: skip
    if found:
        return min(found, key=lambda layout: waves(layout, wanted, device) * layout.step_ns)
    cell, D = wanted.cell, wanted.head_dim
    needed = len(cell.recurrent_gates) * D * D * wanted.item_bytes
    return (
        f"cuda_fused keeps R on the chip: head_dim {D} of {cell.name} needs {needed // 1024} KiB for R, more than fits on "
        f"{device.name} beside the rest; backend='cuda' has no such limit."
    )


def layouts(wanted: Pass, device: Device) -> Iterator[Layout]:
    """All that is possible."""
    for ctas in (1, *(size for size in CLUSTER_SIZES if size <= device.cluster_ctas)):
        for blocks in BLOCKS:
            found = layout(wanted, device, ctas, blocks)
            if found is not None:
                yield found


def layout(wanted: Pass, device: Device, ctas: int, blocks: int) -> Optional[Layout]:
    """The layout with that many CTAs and blocks a warp; None if it does not fit."""
    cell, item_bytes, forward = wanted.cell, wanted.item_bytes, wanted.direction == "forward"
    overhead = OVERHEAD[wanted.direction, blocks] + (SPLIT_OVERHEAD if item_bytes == 4 else 0)
    D = round_up(wanted.head_dim, lcm(2 * UNITS, UNITS * blocks * ctas))
    units = D // ctas
    recurrent, gates = len(cell.recurrent_gates), len(cell.gates)
    width = D if forward else recurrent * units  # of the product, along k
    tiles = (recurrent * blocks + 1) // 2 if forward else (ctas * blocks + 1) // 2
    steps, too_many = divmod(width * item_bytes, MMA_BYTES)
    if too_many:
        return None
    warps = units // (UNITS * blocks)
    all_warps = round_up(warps + TRANSFER_WARPS, 4)
    registers = min(248, device.registers // (32 * all_warps) // 8 * 8)
    kept = min(steps, (registers - overhead) // (4 * tiles))
    if kept < steps:
        kept -= kept % (2 if steps % 2 == 0 else 1)  # operands are best loaded in pairs
    threads = 32 * (warps + TRANSFER_WARPS)
    if kept < 0 or threads > 1024:
        return None
    array = ROWS * (units * item_bytes + PADDING)
    buffers = 2 * ROWS * (width * item_bytes + PADDING)
    exchange = "local" if ctas == 1 else "cluster"
    sent = 0 if ctas == 1 else ROWS * D * (item_bytes if forward else 4)
    sums = 0 if forward else 2 * sent
    rest = warps * (steps - kept) * tiles * 512
    initial = 0 if forward else 32 * warps * 2 * blocks * cell.num_states * 4
    ring = len(cell.input_gates) if forward else len(cell.saved) + wanted.moved_states
    results = wanted.moved_states + len(cell.saved) if forward else gates - recurrent
    for stages in STAGES:
        shared = buffers + rest + initial + sums + (stages * ring + 2 * results) * array + BARRIER_BYTES
        if shared <= device.shared_bytes:
            product = product_ns(steps, tiles * (1 if item_bytes == 2 else 6), warps, rest)
            step_ns = BESIDES_NS + product + exchange_ns(exchange, sent)
            return Layout(exchange, ctas, D, blocks, kept, TRANSFER_WARPS, stages, threads, shared, step_ns)
    return None


BARRIER_BYTES = 16


# ---------------------------------------------------------------------------------------------------------- time of a step

CLOCK_GHZ = 1.75
BESIDES_NS = 200
"""Of a step besides product and exchange: the pointwise step and what waits for it."""

MMA_CLOCKS, SHARED_BYTES_A_CLOCK = 8, 128
"""A call of mma on one of an SM's four tensor cores; what shared memory yields."""

CLUSTER_NS = ((2048, 285), (4096, 366), (8192, 501), (12288, 580), (16384, 665))
"""An exchange in a cluster, by bytes of a buffer; beyond as between the last two. Measured on an H200."""


def product_ns(steps: int, tiles: int, warps: int, rest_bytes: int) -> float:
    """The product of one CTA, of which rest_bytes of R come from shared memory."""
    rounds = -(-warps // 4)
    return (rounds * steps * tiles * MMA_CLOCKS + rest_bytes / SHARED_BYTES_A_CLOCK) / CLOCK_GHZ


def exchange_ns(exchange: str, sent: int) -> float:
    """Until what the CTAs hand to each other, so many bytes to each, is there."""
    if exchange == "local":
        return 0.0
    return interpolate(CLUSTER_NS, sent)


def interpolate(table: tuple[tuple[int, float], ...], x: int) -> float:
    """The value at x of a line through the points of a table, its last piece extended; before the first point that point's."""
    last = next((i for i, (place, _) in enumerate(table) if x <= place), len(table) - 1)
    if last == 0:
        return table[0][1]
    (x0, y0), (x1, y1) = table[last - 1], table[last]
    return y0 + (y1 - y0) * (x - x0) / (x1 - x0)


def waves(layout: Layout, wanted: Pass, device: Device) -> int:
    """How many times the device is filled; clusters leave some SMs unused."""
    at_once = device.multiprocessors if layout.ctas == 1 else int(0.92 * device.multiprocessors / layout.ctas)
    return -(-wanted.groups // max(1, at_once))
