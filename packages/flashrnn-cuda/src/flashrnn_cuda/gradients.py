"""The gradients of R and b after the loop over time, and what both backends prepare for it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Optional

import torch
from torch import Tensor

from flashrnn.problem import InputGradients, Inputs, Problem

from . import arguments as pack
from .catalogue import sums, weight_gradient
from .compile.kernel import Kernel
from .device import device, index_of
from .launch import function
from .operands import previous_h

CUBLAS_TILE, ENOUGH_TILES = 128, 32
"""cuBLAS makes the gradient of R where one of its products has at least so many such tiles; elsewhere our own kernel."""

TILE, THREADS, STAGES, BLOCK_BYTES = 64, 128, 4, 64
"""As in kernels/gradient/weights.cuh."""
CTAS_PER_SM, SMALLEST_PART = 6, 256

OUT_DTYPE = "dtype" in torch.ops.aten.bmm.overloads()
"""Whether a product of 16-bit matrices can return the float32 it is summed in (PyTorch 2.8 and newer)."""


class GateGradients(NamedTuple):
    """Gradients of the gates: the others, [gate, B, T, NH, D], before those that have an input part, [B, T, gate, NH, D]."""

    others: Optional[Tensor]
    input: Optional[Tensor]

    def arrays(self) -> tuple[pack.Integers, pack.Integers]:
        """What kernels are given: those that have an input part, and the others."""
        return pack.arrays(self.input, pack.INPUT), pack.arrays(self.others)

    def parts(self) -> list[Tensor]:
        """Those that are there, in the order of gates, [gate, B, T, NH, D]."""
        return [x for x in (self.others, None if self.input is None else gates_first(self.input)) if x is not None]

    def gates(self) -> list[Tensor]:
        """One tensor [B, T, NH, D] a gate, in order."""
        return [gate for part in self.parts() for gate in part.unbind(0)]


def gate_gradients(problem: Problem, into: InputGradients, all_needed: bool) -> GateGradients:
    """Where the gradients of the gates go: into dWx, else, if they are needed all the same, into memory of their own."""
    cell = problem.cell
    shape = (problem.batch_size, problem.sequence_size, problem.num_heads, problem.head_dim)
    count = len(cell.gates) - len(cell.input_gates)

    def empty(gates: int) -> Optional[Tensor]:
        return torch.empty((gates, *shape), dtype=problem.dtype, device=problem.device) if all_needed and gates else None

    others, d_input = empty(count), into.Wx
    if d_input is None:
        gates = empty(len(cell.input_gates))
        d_input = None if gates is None else gates.permute(1, 2, 0, 3, 4)
    return GateGradients(others, d_input)


def gates_first(Wx: Tensor) -> Tensor:
    """[B, T, NG, NH, D] as [NG, B, T, NH, D]."""
    return Wx.permute(2, 0, 1, 3, 4)


@lru_cache(maxsize=1024)
def gradient_limits(problem: Problem) -> tuple[float, ...]:
    """The bound of h as it looks where h is stored, that of the gradient, and whether there is none through R."""
    config = problem.config
    clipval = config.forward_clipval
    stored = pack.NONE if clipval is None else float(torch.tensor(clipval, dtype=problem.dtype))
    return stored, pack.or_none(config.gradient_recurrent_clipval), config.gradient_recurrent_cut


def fill_bias_gradient(db: Tensor, d_gates: GateGradients) -> None:
    """db[g, n] = sum over rows and steps of d_gates[g][b, t, n], in float32; the last gates have a bias."""
    for target, d_gate in zip(db, d_gates.gates()[-len(db) :]):
        target.copy_(torch.sum(d_gate, (0, 1), dtype=torch.float32))


def fill_weight_and_bias_gradients(
    problem: Problem,
    into: InputGradients,
    d_gates: GateGradients,
    inputs: Inputs,
    states: Tensor,
    d_bias: Optional[Tensor],
) -> None:
    """The gradients of R and b that are asked for, from those of all gates; d_bias: parts of that of b, if there are any."""
    if into.R is not None and suits_cublas(problem):
        fill_weight_gradient(into.R, d_gates, previous_h(inputs, states))
        fill_sums(into, None, d_bias)
    else:
        fill_sums(into, None if into.R is None else weight_gradient_parts(problem, d_gates, inputs, states), d_bias)


def kernels(problem: Problem) -> Iterator[Kernel]:
    """Those that the gradients of R and b may ask for."""
    yield sums()
    if not suits_cublas(problem):
        yield weight_gradient(problem.dtype, pack.piece_bytes(problem))


def suits_cublas(problem: Problem) -> bool:
    """Whether a product of cuBLAS keeps the GPU busy: that of all gates with one head, else that of a gate for all."""
    edge = -(-problem.head_dim // CUBLAS_TILE)
    count = len(problem.cell.recurrent_gates) if problem.num_heads == 1 else problem.num_heads
    return count * edge * edge >= ENOUGH_TILES


def fill_weight_gradient(dR: Tensor, d_gates: GateGradients, h: Tensor) -> None:
    """dR[g, n] = sum over rows and steps of d_gates[g][b, t, n] h[b, t, n]^T, in float32, by cuBLAS.

    Args:
        dR: [NR, NH, D, D], filled.
        d_gates: of all gates.
        h: [B, T, NH, D], what entered each product.
    """
    for target, d_gate in of_all_gates(dR, d_gates) if h.shape[2] == 1 else zip(dR, d_gates.gates()):
        time_first = d_gate.stride(0) < d_gate.stride(1)
        product = product_in_float32(as_matrices(d_gate, time_first).mT, as_matrices(h, time_first))
        target.copy_(product.view(target.shape))


def of_all_gates(dR: Tensor, d_gates: GateGradients) -> Iterator[tuple[Tensor, Tensor]]:
    """For one head: parts of dR, [n, 1, D, D], each with the gradients of its n gates as one, [B, T, 1, n * D]."""
    first = 0
    for part in d_gates.parts():
        count = min(len(part), len(dR) - first)
        if count > 0:
            yield dR[first : first + count], part[:count].permute(1, 2, 3, 0, 4).flatten(3)
            first += count


def weight_gradient_parts(problem: Problem, d_gates: GateGradients, inputs: Inputs, states: Tensor) -> Tensor:
    """The same by our own kernel, [part, NR, NH, D, D] to be summed: CTAs enough also where cuBLAS would make few.

    See kernels/gradient/weights.cuh.
    """
    index, cell, D, item_bytes = index_of(problem.device), problem.cell, problem.head_dim, problem.dtype.itemsize
    NR = len(cell.recurrent_gates)
    tiles = NR * problem.num_heads * (-(-D // TILE)) ** 2
    rows = problem.batch_size * problem.sequence_size
    count = max(1, min(CTAS_PER_SM * device(index).multiprocessors // tiles, -(-rows // SMALLEST_PART)))
    parts = torch.empty((count, NR, problem.num_heads, D, D), dtype=torch.float32, device=problem.device)
    h, (d_input, d_others) = pack.arrays(states), d_gates.arrays()
    arguments = pack.WEIGHT_GRADIENT.pack(
        *pack.sizes(problem),
        *pack.states(inputs.states),
        *pack.masks(inputs),
        *h,
        *d_others,
        *d_input,
        parts.data_ptr(),
        NR,
        len(cell.gates) - len(cell.input_gates),
        -(-rows // count),
    )
    kernel = weight_gradient(problem.dtype, pack.piece_bytes(problem, h, d_others, d_input))
    shared_bytes = STAGES * 2 * BLOCK_BYTES // item_bytes * (TILE * item_bytes + 32)
    function(kernel, index, shared_bytes).launch((tiles, count), THREADS, arguments)
    return parts


def fill_sums(into: InputGradients, R_parts: Optional[Tensor], b_parts: Optional[Tensor]) -> None:
    """The gradients of R and b from their parts, those that are given; see kernels/gradient/sums.cuh."""
    wanted = [x for x, given in ((into.R, R_parts), (into.b, b_parts)) if x is not None and given is not None]
    if wanted:
        arguments = pack.SUMS.pack(*pack.parts(R_parts, into.R), *pack.parts(b_parts, into.b))
        grid = -(-sum(x.numel() for x in wanted) // THREADS)
        function(sums(), index_of(wanted[0].device), 0).launch((grid,), THREADS, arguments)


def product_in_float32(x: Tensor, y: Tensor) -> Tensor:
    """x @ y for batches of matrices, accumulated and returned in float32."""
    if x.dtype == torch.float32:
        return torch.bmm(x, y)
    if OUT_DTYPE:
        return torch.bmm(x, y, out_dtype=torch.float32)
    return torch.bmm(x, y).float()


def as_matrices(x: Tensor, time_first: bool = False) -> Tensor:
    """x [B, T, NH, D] as [NH, rows and steps, D]."""
    return (x.transpose(0, 1) if time_first else x).flatten(0, 1).transpose(0, 1)
