"""The backend `cuda`: product and pointwise step alternate in one persistent kernel, R read in every step; any head_dim."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor

from flashrnn.backend import Backend
from flashrnn.cells import CellSpec
from flashrnn.problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

from . import arguments as pack
from . import gradients, recompute
from .availability import why_not_built, why_not_cuda
from .catalogue import alternating
from .compile.kernel import Kernel
from .device import index_of
from .gradients import fill_bias_gradient, fill_weight_and_bias_gradients, gate_gradients, gradient_limits
from .launch import function
from .operands import chunked_rows, turned
from .recompute import recompute_saved

THREADS = 256
UNITS, ROWS = 8, 8
MAX_COLUMNS = 4
FLOATS = 4 * 32
"""Partial sums that a warp leaves for each block of columns and tile of 16 rows."""


@dataclass(frozen=True)
class Tile:
    """The cut of the work: an item is 8 * blocks units for 8 * columns batch rows."""

    blocks: int
    columns: int
    shared_bytes: int


def tile(direction: str, cell: CellSpec, batch_size: int) -> Tile:
    """The tile of one pass: as many batch rows as there are, up to 32, for R is read once for all of them."""
    recurrent = len(cell.recurrent_gates) if direction == "forward" else 1
    blocks = 2 if recurrent == 1 else 1  # two rows of gates, or of units, fill a tile of 16
    columns = 1
    while columns < MAX_COLUMNS and ROWS * columns < batch_size:
        columns *= 2
    tiles = (recurrent * blocks + 1) // 2
    return Tile(blocks, columns, THREADS // 32 * tiles * columns * FLOATS * 4)


class Cuda(Backend):
    """`cuda`: NVIDIA GPUs from compute capability 8.0, float32, float16 and bfloat16, any head_dim."""

    name = "cuda"
    priority = 10
    interface_version = 1

    def why_not(self, problem: Problem) -> Optional[str]:
        """The device, the dtype, the function, or a kernel that cannot be compiled here."""
        return why_not_cuda(self.name, problem) or why_not_built(self.name, problem, kernels(problem))

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """One launch; see kernels/alternating/forward.cuh."""
        cut = tile("forward", problem.cell, problem.batch_size)
        R = chunked_rows(inputs.R)
        h = handed_rows(problem, R)
        carried, arrivals = scratch(problem, cut)
        kernel = forward_kernel(problem, cut)
        arguments = pack.ALTERNATING_FORWARD.pack(
            *pack.forward_loop(problem, R, inputs, outputs),
            *pack.arrays(inputs.Wx, pack.INPUT),
            *pack.arrays(outputs.states),
            *pack.arrays(outputs.saved, pack.SAVED),
            *(h.data_ptr(), carried.data_ptr(), arrivals.data_ptr(), h.stride(-2) * h.element_size()),
            pack.or_none(problem.config.forward_clipval),
        )
        launch(problem, kernel, cut, arguments)

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """One launch, see kernels/alternating/backward.cuh; then a product for R and a sum for b."""
        cell = problem.cell
        cut = tile("backward", cell, problem.batch_size)
        saved = outputs.saved if outputs.saved is not None else recompute_saved(problem, inputs, outputs)
        d_gates = gate_gradients(problem, into, all_needed=into.R is not None or into.b is not None)
        R = chunked_rows(turned(inputs.R))
        handed = handed_rows(problem, R)
        carried, arrivals = scratch(problem, cut)
        kernel = backward_kernel(problem, cut)
        d_input, d_others = d_gates.arrays()
        arguments = pack.ALTERNATING_BACKWARD.pack(
            *pack.backward_loop(problem, R, inputs, grads, into),
            *pack.arrays(outputs.states),
            *pack.arrays(saved, pack.SAVED),
            *pack.arrays(grads.states),
            *d_input,
            *d_others,
            *(handed.data_ptr(), carried.data_ptr(), arrivals.data_ptr(), handed.stride(-2) * handed.element_size()),
            *gradient_limits(problem),
        )
        launch(problem, kernel, cut, arguments)
        if into.b is not None:
            fill_bias_gradient(into.b, d_gates)
        fill_weight_and_bias_gradients(problem, into, d_gates, inputs, outputs.states, d_bias=None)


def kernels(problem: Problem) -> Iterator[Kernel]:
    """Those that a call may ask for."""
    yield forward_kernel(problem, tile("forward", problem.cell, problem.batch_size))
    if problem.requires_grad:
        yield backward_kernel(problem, tile("backward", problem.cell, problem.batch_size))
        yield from gradients.kernels(problem)
        yield from recompute.kernels(problem)


def forward_kernel(problem: Problem, cut: Tile) -> Kernel:
    """The kernel of the forward pass."""
    flags = {"MASKED": is_masked(problem), "SAVE": problem.saves_activations}
    return alternating("forward", problem.cell, problem.dtype, cut.blocks, cut.columns, **flags)


def backward_kernel(problem: Problem, cut: Tile) -> Kernel:
    """The kernel of the backward pass."""
    return alternating("backward", problem.cell, problem.dtype, cut.blocks, cut.columns, MASKED=is_masked(problem))


def is_masked(problem: Problem) -> bool:
    """Whether rows differ in what a step does to them."""
    return problem.has_lengths or problem.has_resets


def handed_rows(problem: Problem, R: Tensor) -> Tensor:
    """Two buffers of what one step hands to the next: rows as long as those of R, zero where nobody writes."""
    shape = (2, problem.num_heads, problem.batch_size, R.shape[-1])
    return torch.zeros(shape, dtype=problem.dtype, device=problem.device)


def scratch(problem: Problem, cut: Tile) -> tuple[Tensor, Tensor]:
    """Float32 states [NS, B, NH, D] for the loop over time, and a counter for each head and tile of batch rows."""
    shape = (problem.cell.num_states, problem.batch_size, problem.num_heads, problem.head_dim)
    groups = problem.num_heads * -(-problem.batch_size // (ROWS * cut.columns))
    carried = torch.empty(shape, dtype=torch.float32, device=problem.device)
    return carried, torch.zeros(groups, dtype=torch.int32, device=problem.device)


def launch(problem: Problem, kernel: Kernel, cut: Tile, arguments: bytes) -> None:
    """As many CTAs as there are items, but no more than run at a time."""
    index = index_of(problem.device)
    loaded = function(kernel, index, cut.shared_bytes)
    groups = problem.num_heads * -(-problem.batch_size // (ROWS * cut.columns))
    items = groups * -(-problem.head_dim // (UNITS * cut.blocks))
    grid = min(items, loaded.resident(THREADS))
    loaded.launch((grid,), THREADS, arguments, cooperative=True)


CUDA = Cuda()
