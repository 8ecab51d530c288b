"""Which kernels a training run with given functions, head dimensions and dtypes will ask for, without a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Union

import torch

from flashrnn.cells import CellSpec, get_cell

from . import alternating, catalogue
from .compile.architectures import Architecture
from .compile.kernel import Kernel
from .device import Device
from .plan import Layout, Pass, plan

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
"""What is to be planned for is known by compute capability: shared memory and registers go with it.

Source: CUDA C++ Programming Guide, technical specifications per compute capability; the vendor's data sheets for the SMs.
"""

DIRECTIONS = ("forward", "backward")
HEADS, BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64), (1, 16, 32, 64, 128, 256, 512, 1024)
"""On which the plan depends too."""

PIECES = (16, 4)
"""Bytes that rows are moved in where head_dim is even; odd ones in 16 bits need 2."""


def device_of(architecture: Architecture) -> Device:
    """A device of that compute capability, or the nearest older one."""
    older = [device for device in DEVICES if device.capability <= architecture.capability]
    return replace(max(older, key=lambda device: device.capability), capability=architecture.capability)


def kernels_for(
    functions: Sequence[str],
    head_dims: Sequence[int],
    dtypes: Sequence[torch.dtype],
    backends: Sequence[str],
    architecture: Architecture,
) -> list[Kernel]:
    """Every kernel of these backends, forward and backward, with and without lengths or resets, each once."""
    device = device_of(architecture)
    found: dict[Kernel, None] = {}
    for function, dtype in product(functions, dtypes):
        cell = get_cell(function)
        found[catalogue.replay(cell, dtype)] = None
        found[catalogue.sums()] = None
        for piece in pieces(head_dims, dtype):
            found[catalogue.weight_gradient(dtype, piece)] = None
        if "cuda" in backends:
            found.update(dict.fromkeys(alternating_kernels(cell, dtype)))
        if "cuda_fused" in backends:
            for head_dim in head_dims:
                found.update(dict.fromkeys(fused_kernels(cell, dtype, head_dim, device)))
    return list(found)


def pieces(head_dims: Sequence[int], dtype: torch.dtype) -> list[int]:
    """Bytes that rows of these lengths can be moved in."""
    found = {largest_piece(head_dim, dtype) for head_dim in head_dims}
    return sorted(found, reverse=True)


def largest_piece(head_dim: int, dtype: torch.dtype) -> int:
    """Bytes that contiguous rows of this length can be moved in."""
    return next((piece for piece in PIECES if head_dim * dtype.itemsize % piece == 0), 2)


def left_out(
    functions: Sequence[str], head_dims: Sequence[int], dtypes: Sequence[torch.dtype], architecture: Architecture
) -> list[str]:
    """Why there is no kernel of cuda_fused for some of these, each reason once."""
    device = device_of(architecture)
    found = (
        layout
        for function, dtype, head_dim, direction in product(functions, dtypes, head_dims, DIRECTIONS)
        for layout in layouts_of(direction, get_cell(function), dtype, head_dim, device)
    )
    return list(dict.fromkeys(layout for layout in found if isinstance(layout, str)))


def layouts_of(
    direction: str, cell: CellSpec, dtype: torch.dtype, head_dim: int, device: Device
) -> list[Union[Layout, str]]:
    """The layouts of a pass of cuda_fused for any batch size and number of heads, or why there is none."""
    passes = (Pass(direction, cell, dtype.itemsize, head_dim, *sizes) for sizes in product(HEADS, BATCH_SIZES))
    return list(dict.fromkeys(plan(wanted, device) for wanted in passes))


def fused_kernels(cell: CellSpec, dtype: torch.dtype, head_dim: int, device: Device) -> Iterator[Kernel]:
    """Those of cuda_fused."""
    piece = largest_piece(head_dim, dtype)
    for direction in DIRECTIONS:
        name = "SAVE" if direction == "forward" else "OUTSIDE"
        for layout, masked, value in product(
            layouts_of(direction, cell, dtype, head_dim, device), (False, True), (False, True)
        ):
            if isinstance(layout, Layout):
                flags = {"MASKED": masked, "LIMITED": False, name: value}
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
