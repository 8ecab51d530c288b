"""What is prepared for products of matrices, on any device."""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from torch import Tensor

from flashrnn.problem import Inputs
from flashrnn_cuda.operands import previous_h

NH, D = 2, 3


def before(h: Tensor, first: Optional[Tensor], resets: Optional[Tensor]) -> Tensor:
    """Row by row what the name says."""
    found = torch.zeros_like(h)
    for b in range(h.shape[0]):
        for t in range(h.shape[1]):
            if t > 0:
                found[b, t] = h[b, t - 1]
            elif first is not None:
                found[b, t] = first[b]
            if resets is not None and resets[b, t]:
                found[b, t] = 0
    return found


@pytest.mark.parametrize("with_resets", [False, True])
@pytest.mark.parametrize("with_states", [False, True])
@pytest.mark.parametrize("time_first", [False, True])
@pytest.mark.parametrize(("batch_size", "sequence_size"), [(4, 5), (1, 5), (4, 1), (1, 1)])
def test_h_before_each_step(
    batch_size: int, sequence_size: int, time_first: bool, with_states: bool, with_resets: bool
) -> None:
    B, T = batch_size, sequence_size
    order = (0, 2, 1, 3, 4)
    states = torch.randn(2, T, B, NH, D).permute(order) if time_first else torch.randn(2, B, T, NH, D)
    states[0, :, -1] = torch.nan  # enters no step
    initial = torch.randn(2, B, NH, D) if with_states else None
    resets = torch.rand(B, T) < 0.3 if with_resets else None
    R, b = torch.empty(4, NH, D, D), torch.empty(4, NH, D)
    found = previous_h(Inputs(None, R, b, initial, None, resets), states)
    torch.testing.assert_close(found, before(states[0], None if initial is None else initial[0], resets), rtol=0, atol=0)
    assert found.stride() == states[0].stride()
