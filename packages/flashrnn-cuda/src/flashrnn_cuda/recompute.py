"""recompute: the activations of all steps again, from the states that forward returned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import torch
from torch import Tensor

from flashrnn.problem import Inputs, Outputs, Problem

from . import arguments as pack
from .catalogue import replay
from .compile.kernel import Kernel
from .device import index_of
from .gradients import as_matrices, product_in_float32
from .launch import function
from .operands import previous_h

THREADS = 128


def kernels(problem: Problem) -> Iterator[Kernel]:
    """The one it asks for, if activations are computed again."""
    if problem.config.recompute and problem.cell.saved:
        yield replay(problem.cell, problem.dtype)


def recompute_saved(problem: Problem, inputs: Inputs, outputs: Outputs) -> Optional[Tensor]:
    """The activations [T, K, NH, B, D] that forward did not save; None where the cell has none.

    The recurrent products of all steps are one product of matrices for each gate; what is left is pointwise.
    """
    cell = problem.cell
    if not cell.saved:
        return None
    h = previous_h(inputs, outputs.states)
    h_rows = as_matrices(h)
    shape = (-1, problem.num_heads, problem.batch_size, problem.sequence_size, problem.head_dim)
    products = torch.stack([product_in_float32(h_rows, R.mT) for R in inputs.R])
    saved_shape = (problem.sequence_size, len(cell.saved), problem.num_heads, problem.batch_size, problem.head_dim)
    saved = torch.empty(saved_shape, dtype=problem.dtype, device=problem.device)
    arguments = pack.REPLAY.pack(
        *pack.sizes(problem),
        *pack.weights(inputs.R, inputs.b),
        *pack.states(inputs.states),
        *pack.masks(inputs),
        *pack.arrays(inputs.Wx, pack.INPUT),
        *pack.arrays(products.view(shape).permute(0, 2, 3, 1, 4)),
        *pack.arrays(saved, pack.SAVED),
        pack.or_none(problem.config.forward_clipval),
    )
    elements = problem.batch_size * problem.num_heads * problem.head_dim
    kernel = replay(cell, problem.dtype)
    function(kernel, index_of(problem.device), 0).launch((-(-elements // THREADS),), THREADS, arguments)
    return saved
