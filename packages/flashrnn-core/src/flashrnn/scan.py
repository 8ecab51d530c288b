"""A loop over time in an exported graph, as one operation, so that its length may be a symbol.

The one place that needs what PyTorch calls a prototype: from 2.8 on `scan`, `scan_op` and `has_static_value`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import torch
from torch import Tensor

Step = Callable[..., list[Tensor]]
"""(*states, *entries of the sequences, *constants) -> [*new states, output]."""


def is_exporting() -> bool:
    """Whether torch.export is at work; before PyTorch 2.7 nobody knows."""
    return bool(getattr(torch.compiler, "is_exporting", bool)())


def exports_any(size: int) -> bool:
    """Whether torch.export is at work and `size` a symbol to it. Before PyTorch 2.8: no, and then torch fixes that size."""
    if not is_exporting():
        return False
    try:
        from torch.fx.experimental.symbolic_shapes import has_static_value
    except ImportError:
        return False
    return not has_static_value(size)


def scan(
    step: Step, states: Sequence[Tensor], sequences: list[Tensor], constants: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """The states after the last step, and the outputs of all steps; the first axis of these and of the sequences is time."""
    from torch._higher_order_ops.scan import scan, scan_op

    # No two may share memory, and all have the strides of new states.
    initial = [x.clone(memory_format=torch.contiguous_format) for x in states]
    sequences = [x.contiguous() for x in sequences]  # scan takes a symbol in other strides for one of another size
    if torch.compiler.is_dynamo_compiling():  # with strict=True; dynamo knows nothing but torch's own call of scan_op

        def step_in_two(states: Sequence[Tensor], now: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
            *new, output = step(*states, *now, *constants)
            return new, output

        last, outputs = scan(step_in_two, initial, sequences)
    else:  # scan would call dynamo, which remembers sizes of other exports and then takes a symbol for a number
        *last, outputs = scan_op(step, initial, sequences, tuple(constants))
    return list(last), outputs
