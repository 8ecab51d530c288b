"""Random inputs for the tests of flashrnn-core, and short names for running them."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import torch
from torch import Tensor

from flashrnn import FlashRNNConfig, flashrnn

FUNCTIONS = ("lstm", "gru", "elman", "slstm")
BACKENDS = ("vanilla", "vanilla_fwbw")
RECOMPUTE = {"vanilla": (False,), "vanilla_fwbw": (False, True)}  # vanilla leaves what is saved to autograd
NUM_STATES = {"lstm": 2, "gru": 1, "elman": 1, "slstm": 4}
NUM_GATES = {"lstm": (4, 4, 4), "gru": (3, 3, 4), "elman": (1, 1, 1), "slstm": (4, 4, 4)}  # of Wx, R, b

LENGTHS = torch.tensor([3, 1])
RESETS = torch.tensor([[False, True, False], [True, False, True]])
MASKS = {
    "plain": (None, None),
    "lengths": (LENGTHS, None),
    "resets": (None, RESETS),
    "both": (torch.tensor([0, 2]), RESETS),
}


class Sizes(NamedTuple):
    """B, T, NH, D."""

    B: int = 2
    T: int = 3
    NH: int = 2
    D: int = 2


def make_inputs(function: str, sizes: Sizes = Sizes(), dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """Wx, R, b and initial states that want gradients. slstm's n lies in 1..2, where the max in n' never acts."""
    B, T, NH, D = sizes
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    of_Wx, of_R, of_b = NUM_GATES[function]
    states = randn(NUM_STATES[function], B, NH, D)
    if function == "slstm":
        states[2] = 1 + torch.rand((B, NH, D), generator=generator, dtype=torch.float64)
    tensors = (randn(B, T, of_Wx, NH, D), randn(of_R, NH, D, D) / D**0.5, randn(of_b, NH, D), states)
    return [x.to(dtype).requires_grad_() for x in tensors]


def copies(tensors: list[Tensor]) -> list[Tensor]:
    """Fresh leaves with the same values."""
    return [x.detach().clone().requires_grad_(x.requires_grad) for x in tensors]


def run(
    function: str,
    backend: str,
    tensors: list[Tensor],
    lengths: Optional[Tensor] = None,
    resets: Optional[Tensor] = None,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """flashrnn() of Wx, R, b and maybe states."""
    config = FlashRNNConfig(function=function, backend=backend, **options)
    return flashrnn(*tensors, config=config, lengths=lengths, resets=resets)


def weights_like(outputs: tuple[Tensor, ...], seed: int = 1) -> list[Tensor]:
    """Outside gradients for these outputs."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x.dtype) for x in outputs]


def gradients(outputs: tuple[Tensor, ...], tensors: list[Tensor], unused: bool = False) -> list[Tensor]:
    """Gradients of all tensors under fixed random outside gradients; zeros for an unused tensor, if that may be."""
    found = torch.autograd.grad(outputs, tensors, weights_like(outputs), retain_graph=True, allow_unused=unused)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(tensors, found)]


def assert_equal(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Close to within the tolerance, relative and absolute."""
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
