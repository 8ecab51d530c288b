"""tanh as the kernels compute it in float32, seen through one step of elman from h = 0, where h is tanh(Wx)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from flashrnn import flashrnn
from flashrnn_testing.inputs import default_device

D = 64
LARGEST = 4.2e-7 if default_device().type == "cpu" else 8e-7  # a GPU's exp and quotient are not rounded correctly


def tanh(x: Tensor) -> Tensor:
    """Of x [B, D] in float32."""
    Wx = x.to(default_device(), torch.float32)[:, None, None, None]
    R, b = Wx.new_zeros(1, 1, D, D), Wx.new_zeros(1, 1, D)
    return flashrnn(Wx, R, b, function="elman", backend="triton_fused")[0][0, :, 0, 0].cpu()


@pytest.mark.parametrize(("smallest", "largest"), [(1e-37, 1e-3), (1e-3, 1.0), (0.35, 0.45), (1.0, 40.0)])
def test_tanh_is_exact_relative_to_itself(smallest: float, largest: float) -> None:
    exponents = torch.linspace(0, 1, 128 * D, dtype=torch.float64)
    x = (smallest * (largest / smallest) ** exponents).float().view(-1, D)
    for signed in (x, -x):
        exact = signed.double().tanh()
        assert ((tanh(signed) - exact) / exact).abs().max() < LARGEST


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # the interpreter's, in the branch not taken
def test_tanh_of_what_is_no_ordinary_number() -> None:
    inf, nan, largest = float("inf"), float("nan"), torch.finfo(torch.float32).max
    given = torch.tensor([0.0, 1e-45, -1e-45, 1e10, -1e10, largest, -largest, inf, -inf, nan])
    x = torch.zeros(1, D)
    x[0, : len(given)] = given
    found, expected = tanh(x), x.tanh()
    assert torch.equal(found.nan_to_num(2.0), expected.nan_to_num(2.0))
