"""How to lay a problem out on a GPU: a pure function of plain facts, so that it can be tried for GPUs that are not there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

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

OVERHEAD = {("forward", 1): 72, ("forward", 2): 120, ("backward", 2): 124}
"""Registers a thread needs besides those that hold R, by direction and blocks a warp: found by compiling, none spills."""
SPLIT_OVERHEAD = 56
"""The same, on top, where a float32 product is made of three."""


@dataclass(frozen=True)
class Layout:
    """One fused kernel on one SM.

    Attributes:
        exchange: how CTAs hand each other what the next step reads; "local": there is but one.
        D: head_dim rounded up.
        blocks: blocks of 8 units that a warp owns.
        kept: steps along k whose part of R stays in registers; the others' is in shared memory.
        transfer_warps, stages: warps that move data, steps that they run ahead.
        threads, shared_bytes: of the CTA.
    """

    exchange: str
    D: int
    blocks: int
    kept: int
    transfer_warps: int
    stages: int
    threads: int
    shared_bytes: int


def round_up(x: int, multiple: int) -> int:
    """The next multiple that is not less than x."""
    return -(-x // multiple) * multiple


def moved_states(direction: str, cell: CellSpec) -> int:
    """States that are moved a step: all that come out (forward); those read and the gradients that come in (backward)."""
    flowing = cell.num_states - len(cell.constant_states)
    return cell.num_states + (0 if direction == "forward" else flowing)


def plan(direction: str, cell: CellSpec, item_bytes: int, head_dim: int, moved: int, device: Device) -> Union[Layout, str]:
    """The layout of a fused pass, or why there is none.

    Args:
        direction: "forward" or "backward".
        cell: what is computed.
        item_bytes: of an element.
        head_dim: D.
        moved: states that are moved a step, at most; see moved_states.
        device: where.
    """
    D = round_up(head_dim, 2 * UNITS)
    choices = [layout(direction, cell, item_bytes, D, blocks, moved, device) for blocks in (1, 2)]
    fitting = [choice for choice in choices if choice is not None]
    if fitting:
        return max(fitting, key=lambda choice: choice.kept)
    recurrent = len(cell.recurrent_gates) * D * D * item_bytes
    return (
        f"cuda_fused keeps R on one SM: head_dim {head_dim} of {cell.name} needs {recurrent // 1024} KiB for R, more than "
        f"fits on {device.name} beside the rest; backend='cuda' has no such limit."
    )


def layout(
    direction: str, cell: CellSpec, item_bytes: int, D: int, blocks: int, moved: int, device: Device
) -> Union[Layout, None]:
    """The layout with that many blocks a warp; None if it does not fit."""
    overhead = OVERHEAD.get((direction, blocks))
    if overhead is None:
        return None
    overhead += SPLIT_OVERHEAD if item_bytes == 4 else 0
    recurrent, gates = len(cell.recurrent_gates), len(cell.gates)
    forward = direction == "forward"
    width = D if forward else recurrent * D
    tiles = (recurrent * blocks + 1) // 2 if forward else (blocks + 1) // 2
    steps = width * item_bytes // MMA_BYTES
    warps = D // (UNITS * blocks)
    all_warps = round_up(warps + TRANSFER_WARPS, 4)
    registers = min(255, device.registers // (32 * all_warps) // 8 * 8)
    kept = min(steps, (registers - overhead) // (4 * tiles))
    kept -= kept % next(group for group in (4, 2, 1) if steps % group == 0)  # operands are loaded in groups
    threads = 32 * (warps + TRANSFER_WARPS)
    if kept < 0 or threads > 1024:
        return None
    array = ROWS * (D * item_bytes + PADDING)
    exchange = 2 * ROWS * (width * item_bytes + PADDING)
    rest = warps * (steps - kept) * tiles * 512
    initial = 0 if forward else 32 * warps * 2 * blocks * cell.num_states * 4
    ring = len(cell.input_gates) if forward else len(cell.saved) + moved
    results = moved + len(cell.saved) if forward else gates - recurrent
    for stages in STAGES:
        shared = exchange + rest + initial + (stages * ring + 2 * results) * array
        if shared <= device.shared_bytes:
            return Layout("local", D, blocks, kept, TRANSFER_WARPS, stages, threads, shared)
    return None
