"""What stands between the user's tensors and a backend's: describe, cast, make fit, allocate, view. In this one place.

Functions that begin with `allocate` make tensors in the axis orders the user chose; those that begin with `view`, `cast` or
`fit` show tensors in the canonical order that `flashrnn.problem` writes down.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable, Optional

import torch
from torch import Tensor

from .checks import check_lengths
from .config import FlashRNNConfig
from .layouts import INPUT, OUTPUT, rearrange, shape_of
from .problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

Results = tuple[Tensor, Tensor, Optional[Tensor]]
"""States in the order of output_shape; last states [NS, B, NH, D]; saved activations [T, K, NH, B, D], if there are any."""

Gradients = tuple[Optional[Tensor], Optional[Tensor], Optional[Tensor], Optional[Tensor]]
"""Of Wx in the order of input_shape, of R, of b and of the initial states; None where not needed."""


def problem_of(
    config: FlashRNNConfig,
    given: Inputs,
    x: Tensor,
    layout: str,
    states_dtype: torch.dtype,
    requires_grad: bool,
    make: Callable[..., Problem],
) -> Problem:
    """The problem that these tensors pose, with B and T read from x, whose axes are `layout`.

    Args:
        make: Problem, or shared_problem where sizes are numbers, not symbols.
    """
    shape, (_, num_heads, head_dim, _) = x.shape, given.R.shape
    return make(
        config,
        shape[layout.index("B")],
        shape[layout.index("T")],
        num_heads,
        head_dim,
        x.device,
        states_dtype,
        requires_grad,
        has_states=given.states is not None,
        has_lengths=given.lengths is not None,
        has_resets=given.resets is not None,
    )


def fit(x: Tensor) -> Tensor:
    """x itself if its last axis has stride 1 and no axis is expanded (stride 0), else a contiguous copy."""
    strides = x.stride()
    expanded = 0 in strides and any(stride == 0 and size != 1 for size, stride in zip(x.shape, strides))
    return x if strides[-1] == 1 and not expanded else x.clone(memory_format=torch.contiguous_format)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in that dtype, itself if it is; asking first costs a tenth of what x.to does."""
    return x if x.dtype == dtype else x.to(dtype)


def cast_inputs(problem: Problem, given: Inputs) -> Inputs:
    """The inputs in canonical order and in the dtypes that `Inputs` promises."""
    dtype, lengths = problem.dtype, given.lengths
    return Inputs(
        Wx=None if given.Wx is None else cast(rearrange(given.Wx, problem.config.input_shape, INPUT), dtype),
        R=cast(given.R, dtype),
        b=cast(given.b, dtype),
        states=given.states,
        lengths=None if lengths is None else check_lengths(lengths, problem.sequence_size),
        resets=given.resets,
    )


def fit_inputs(problem: Problem, given: Inputs) -> Inputs:
    """The inputs as a backend sees them: cast, and copied only where their strides do not fit."""
    Wx, R, b, states, lengths, resets = cast_inputs(problem, given)
    return Inputs(fit_optional(Wx), fit(R), fit(b), fit_optional(states), fit_optional(lengths), fit_optional(resets))


def fit_optional(x: Optional[Tensor]) -> Optional[Tensor]:
    """`fit` for a tensor that may be missing."""
    return None if x is None else fit(x)


def allocate_results(problem: Problem, like: Tensor) -> Results:
    """Uninitialised results of a forward pass, on the device of `like`."""
    sizes, dtype, saved = problem.sizes, problem.dtype, None
    states = like.new_empty(shape_of(problem.config.output_shape, sizes), dtype=dtype)
    last_states = like.new_empty(shape_of("SBHD", sizes), dtype=problem.states_dtype)
    if problem.saves_activations:
        saved = like.new_empty(shape_of("TKHBD", {**sizes, "K": len(problem.cell.saved)}), dtype=dtype)
    return states, last_states, saved


def view_results(problem: Problem, results: Results) -> Outputs:
    """Results as a backend sees them."""
    states, last_states, saved = results
    states = rearrange(states, problem.config.output_shape, OUTPUT)
    return Outputs(states, last_states, saved if problem.saves_activations else None)


def fit_gradients(problem: Problem, states: Optional[Tensor], last_states: Optional[Tensor]) -> OutputGradients:
    """Outside gradients of the results as a backend sees them."""
    return OutputGradients(
        None if states is None else fit(rearrange(states, problem.config.output_shape, OUTPUT)),
        fit_optional(last_states),
    )


def allocate_gradients(problem: Problem, needs: Sequence[bool], given: Inputs) -> Gradients:
    """Uninitialised gradients of a backward pass, of what needs them."""
    sizes, (needs_Wx, needs_R, needs_b, needs_states), empty = problem.sizes, needs, given.R.new_empty
    return (
        empty(shape_of(problem.config.input_shape, sizes), dtype=problem.dtype) if needs_Wx else None,
        empty(given.R.shape, dtype=given.R.dtype) if needs_R else None,
        empty(given.b.shape, dtype=given.b.dtype) if needs_b else None,
        empty(shape_of("SBHD", sizes), dtype=problem.states_dtype) if needs_states else None,
    )


def view_gradients(problem: Problem, gradients: Gradients) -> InputGradients:
    """Gradients as a backend sees them."""
    Wx, R, b, states = gradients
    return InputGradients(None if Wx is None else rearrange(Wx, problem.config.input_shape, INPUT), R, b, states)
