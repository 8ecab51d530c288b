"""Which kernels a training run with given functions, head dimensions and dtypes will ask for, on GPUs that are not here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Union

import torch

from flashrnn.cells import CellSpec, get_cell

from . import alternating, catalogue
from .arguments import largest_piece
from .compile.architectures import Architecture, best
from .compile.kernel import Kernel
from .device import Device
from .plan import COLUMN_ROWS, Layout, Pass, columns_for, fastest, groups_at_once, layouts, plan, usable

DEVICES = (
    Device("A100", (8, 0), 108, 163 * 1024),
    Device("RTX 3090", (8, 6), 82, 99 * 1024),
    Device("Jetson Orin", (8, 7), 16, 163 * 1024),
    Device("RTX 4090", (8, 9), 128, 99 * 1024),
    Device("H200", (9, 0), 132, 227 * 1024),
    Device("B200", (10, 0), 148, 227 * 1024),
    Device("B300", (10, 3), 148, 227 * 1024),
    Device("RTX 5090", (12, 0), 170, 99 * 1024),
)
"""One for each compute capability: shared memory and registers go with it, and what is planned for other numbers of SMs is
what this one, or a small one, takes for other numbers of groups.

Source: CUDA C++ Programming Guide, technical specifications per compute capability; the vendor's data sheets for the SMs.
"""

SMALLEST = {(8, 6): 20, (8, 9): 24, (9, 0): 78, (12, 0): 30}
"""SMs of the smallest GPU of a compute capability, from the same sources."""

DIRECTIONS = ("forward", "backward")
MOST_HEADS, MOST_TILES = 64, 1024
"""Heads, and heads times 8 batch rows, that are built for: the plan depends on them where the device cannot take all at
once. All have to be tried: with a few the layouts that other numbers take would be missed."""


def device_of(architecture: Architecture) -> Device:
    """A device of that compute capability, or the nearest older one."""
    older = [device for device in DEVICES if device.capability <= architecture.capability]
    return replace(max(older, key=lambda device: device.capability), capability=architecture.capability)


def devices_for(architecture: Architecture, entries: Iterable[Architecture], here: Iterable[Device] = ()) -> list[Device]:
    """For which devices kernels of this architecture are to be planned, where all these entries are built.

    They are those of its own compute capability, and those of newer ones that no other entry serves better: code for 8.0
    runs on 8.6 and 8.9 too, whose shared memory is smaller. `here`: GPUs that count beside those of the table.
    """
    served = [x for x in (*DEVICES, *here) if best(entries, x.capability) == architecture]
    return list(dict.fromkeys([device_of(architecture), *served]))


def kernels_for(
    functions: Sequence[str],
    head_dims: Sequence[int],
    dtypes: Sequence[torch.dtype],
    backends: Sequence[str],
    devices: Iterable[Device],
) -> list[Kernel]:
    """Every kernel that these backends may ask for on these devices, whatever the options of a call, each once."""
    found: dict[Kernel, None] = {}
    for function, dtype in product(functions, dtypes):
        cell = get_cell(function)
        found[catalogue.replay(cell, dtype)] = None
        found[catalogue.sums()] = None
        for head_dim in head_dims:
            found[catalogue.weight_gradient(dtype, largest_piece(head_dim * dtype.itemsize))] = None
        if "cuda" in backends:
            found.update(dict.fromkeys(alternating_kernels(cell, dtype)))
        if "cuda_fused" in backends:
            for head_dim, device in product(head_dims, devices):
                found.update(dict.fromkeys(fused_kernels(cell, dtype, head_dim, device)))
    return list(found)


def left_out(
    functions: Sequence[str], head_dims: Sequence[int], dtypes: Sequence[torch.dtype], devices: Iterable[Device]
) -> list[str]:
    """Why there is no kernel of cuda_fused for some of these, each reason once."""
    found = (
        layout
        for device, function, dtype, head_dim, direction in product(devices, functions, dtypes, head_dims, DIRECTIONS)
        for layout in layouts_of(direction, get_cell(function), dtype, head_dim, device, has_options=True)
    )
    return list(dict.fromkeys(layout for layout in found if isinstance(layout, str)))


def layouts_of(
    direction: str, cell: CellSpec, dtype: torch.dtype, head_dim: int, device: Device, has_options: bool
) -> list[Union[Layout, str]]:
    """The layouts of a pass of cuda_fused for any batch size and number of heads, or why there is none."""

    def pass_for(num_heads: int, tiles: int) -> Pass:
        return Pass(direction, cell, dtype.itemsize, head_dim, num_heads, COLUMN_ROWS * tiles, has_options)

    found = dict.fromkeys([plan(pass_for(1, 1), device)])
    possible: dict[tuple[int, int], Layout] = {}  # of those with as many rows, on as many SMs, the fastest
    for layout in layouts(pass_for(1, MOST_TILES), device):
        kept = possible.setdefault((layout.columns, groups_at_once(layout, device)), layout)
        if layout.step_ns < kept.step_ns:
            possible[layout.columns, groups_at_once(layout, device)] = layout
    small = replace(device, multiprocessors=SMALLEST.get(device.capability, device.multiprocessors))
    sizes = list(dict.fromkeys((device, small)))
    for num_heads in range(1, MOST_HEADS + 1 if possible else 1):
        for tiles in range(1, MOST_TILES // num_heads + 1):
            columns = columns_for(COLUMN_ROWS * tiles)
            useful = [layout for layout in possible.values() if layout.columns in columns]
            for size in sizes:
                fit = [layout for layout in useful if layout.ctas <= usable(layout.cluster, size)]
                if fit:
                    found[fastest(fit, pass_for(num_heads, tiles), size)] = None
    return list(found)


def fused_kernels(cell: CellSpec, dtype: torch.dtype, head_dim: int, device: Device) -> Iterator[Kernel]:
    """Those of cuda_fused."""
    piece = largest_piece(head_dim * dtype.itemsize)
    for direction, has_options in product(DIRECTIONS, (False, True)):
        name = "SAVE" if direction == "forward" else "OUTSIDE"
        options = [(False, False)] if not has_options else [(False, True), (True, False), (True, True)]
        for layout in layouts_of(direction, cell, dtype, head_dim, device, has_options):
            for (masked, limited), flag in product(options, (False, True)) if isinstance(layout, Layout) else ():
                flags = {"MASKED": masked, "LIMITED": limited, name: flag}
                yield catalogue.fused(direction, cell, dtype, layout, piece, **flags)


def alternating_kernels(cell: CellSpec, dtype: torch.dtype) -> Iterator[Kernel]:
    """Those of cuda, for any head_dim and batch size."""
    batch_sizes = [alternating.ROWS * 2**i for i in range(alternating.MAX_COLUMNS.bit_length())]
    for batch_size, masked in product(batch_sizes, (False, True)):
        cut = alternating.tile("forward", cell, batch_size)
        for save in (False, True):
            yield catalogue.alternating("forward", cell, dtype, cut.blocks, cut.columns, MASKED=masked, SAVE=save)
        cut = alternating.tile("backward", cell, batch_size)
        yield catalogue.alternating("backward", cell, dtype, cut.blocks, cut.columns, MASKED=masked)
