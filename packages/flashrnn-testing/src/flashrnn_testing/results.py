"""Everything one call and its backward pass give, by name; so that two calls can be compared tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Optional

import torch
from torch import Tensor

from flashrnn import FlashRNNConfig, flashrnn
from flashrnn.cells import get_cell

from .compare import Mismatch, check_close
from .inputs import loss_weights

GRADIENT = "gradient of "


def compute(
    config: FlashRNNConfig,
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Optional[Tensor] = None,
    lengths: Optional[Tensor] = None,
    resets: Optional[Tensor] = None,
    include_backward: bool = True,
    outputs: Sequence[str] = ("states", "last_states"),
    seed: int = 0,
) -> dict[str, Tensor]:
    """Run one backend; gradients are those of a random weighted sum of the named outputs.

    Returns:
        "h", "c", ... [B, T, NH, D]; "last h", ... [B, 1, NH, D]; "gradient of Wx", of "R", "b", and "initial h", ...
    """
    names = get_cell(config.function).states
    given_inputs = [x for x in (Wx, R, b, states) if x is not None]
    leaves = [x.detach().clone().requires_grad_(include_backward) for x in given_inputs]
    initial = None if states is None else leaves[3]
    with torch.set_grad_enabled(include_backward):
        every, last = flashrnn(leaves[0], leaves[1], leaves[2], initial, config=config, lengths=lengths, resets=resets)
    results = {name: x.detach() for name, x in zip(names, every)}
    results.update({f"last {name}": x.detach() for name, x in zip(names, last)})
    if include_backward:
        given = {"states": every, "last_states": last}
        parts = [(given[name] * loss_weights(given[name], seed + k)).sum().double() for k, name in enumerate(outputs)]
        dWx, dR, db, *d_initial = torch.autograd.grad(torch.stack(parts).sum(), leaves)
        results.update({GRADIENT + "Wx": dWx, GRADIENT + "R": dR, GRADIENT + "b": db})
        results.update({f"{GRADIENT}initial {name}": x for grad in d_initial for name, x in zip(names, grad)})
    return results


def compare(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor], dtype: torch.dtype, **kwargs: Any) -> None:
    """Hold every result against its namesake; Mismatch names the first that is off."""
    if actual.keys() != expected.keys():
        raise Mismatch(f"{sorted(actual)} instead of {sorted(expected)}")
    for name, x in actual.items():
        check_close(name, x, expected[name], dtype=dtype, gradient=name.startswith(GRADIENT), **kwargs)


def compare_bitwise(actual: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Hold every result to the bit against its namesake."""
    if actual.keys() != expected.keys():
        raise Mismatch(f"{sorted(actual)} instead of {sorted(expected)}")
    for name, x in actual.items():
        check_close(name, x, expected[name], atol=0.0, rtol=0.0)
