"""Memory: strides of inputs and gradients make no difference, to the bit; axis orders are only axis orders."""

from __future__ import annotations

from typing import Callable

import pytest
import torch
from torch import Tensor

from flashrnn import flashrnn

from ..results import compare_bitwise, compute
from .base import ContractBase


def transposed(x: Tensor) -> Tensor:
    """The same values with the memory order of the axes turned round."""
    order = tuple(reversed(range(x.ndim)))
    return x.permute(order).contiguous().permute(order)


def sliced(x: Tensor) -> Tensor:
    """The same values inside a larger tensor of NaN, at an odd offset."""
    larger = x.new_full([size + 1 for size in x.shape], float("nan"))
    inner = larger[tuple(slice(1, None) for _ in x.shape)]
    inner.copy_(x)
    return inner


def odd_strides(x: Tensor) -> Tensor:
    """The same values with absurd strides on the axes of size 1."""
    x = x.contiguous()
    return x.as_strided(x.shape, [7919 if size == 1 else stride for size, stride in zip(x.shape, x.stride())])


class MemoryTests(ContractBase):
    """Strides and axis orders."""

    @pytest.mark.parametrize("restride", [transposed, sliced, odd_strides])
    @pytest.mark.parametrize("sizes", [(3, 5, 2, 16), (1, 1, 1, 1)])
    def test_strides_of_inputs(
        self, function: str, device: str, restride: Callable[[Tensor], Tensor], sizes: tuple[int, int, int, int]
    ) -> None:
        plain = [x.detach() for x in self.case(function, device, self.dtypes[0], *sizes)]
        results = []
        for tensors in (plain, [restride(x) for x in plain]):
            leaves = [x.requires_grad_() for x in tensors]
            every, last = flashrnn(*leaves, config=self.config(function))
            grads = torch.autograd.grad(every.square().sum() + last.square().sum(), leaves)
            results.append({"states": every, "last": last, **{f"gradient {k}": x for k, x in enumerate(grads)}})
        compare_bitwise(results[1], results[0])

    def test_expanded_inputs(self, function: str, device: str) -> None:
        """Stride 0: one row for the whole batch, one bias for all heads."""
        case = self.case(function, device, self.dtypes[0])
        expanded = [x.detach()[:, :1].expand_as(x) for x in case]
        plain = self.run(function, type(case)(*(x.clone(memory_format=torch.contiguous_format) for x in expanded)))
        leaves = [x.requires_grad_() for x in expanded]
        every, last = flashrnn(*leaves, config=self.config(function))
        compare_bitwise({"h": every[0], "last h": last[0]}, {name: plain[name] for name in ("h", "last h")})

    @pytest.mark.parametrize("output", [0, 1])
    def test_expanded_gradients(self, function: str, dtype: torch.dtype, device: str, output: int) -> None:
        """`.sum()` sends back a gradient of stride 0; so do other strides than those of the output."""
        leaves = [x.detach().clone().requires_grad_() for x in self.case(function, device, dtype)]
        result = flashrnn(*leaves, config=self.config(function))[output]
        ones = torch.ones_like(result)
        expected = torch.autograd.grad(result, leaves, ones, retain_graph=True)
        for grad in (ones[:1, :1, :1, :1, :1].expand_as(ones), transposed(ones), sliced(ones)):
            got = torch.autograd.grad(result, leaves, grad, retain_graph=True)
            assert all(torch.equal(x, y) for x, y in zip(got, expected))

    @pytest.mark.parametrize("input_shape", ["BTGHD", "TBGHD"])
    @pytest.mark.parametrize("output_shape", ["SBTHD", "STBHD"])
    def test_axis_orders(self, function: str, device: str, input_shape: str, output_shape: str) -> None:
        Wx, R, b, states = self.case(function, device, self.dtypes[0])
        expected = compute(self.config(function), Wx, R, b, states)
        given = Wx if input_shape == "BTGHD" else Wx.transpose(0, 1)
        config = self.config(function, input_shape=input_shape, output_shape=output_shape)
        got = compute(config, given, R, b, states, include_backward=False)
        swap = output_shape == "STBHD"
        compare_bitwise({n: x.transpose(0, 1) if swap else x for n, x in got.items()}, {n: expected[n] for n in got})
        last = flashrnn(given, R, b, states, config=config)[1]
        flashrnn(given, R, b, last, config=config)

    @pytest.mark.parametrize("initial", [False, True], ids=["from zeros", "from states"])
    def test_last_states_may_be_changed_in_place(
        self, function: str, dtype: torch.dtype, device: str, initial: bool
    ) -> None:
        """Before the backward pass, which does not need them; gradients are those of the numbers that the call returned."""
        case = self.case(function, device, dtype, create_states=initial)
        results = []
        for change in (False, True):
            leaves = [x.detach().clone().requires_grad_() for x in case if x is not None]
            every, last = flashrnn(*leaves, config=self.config(function))
            if change:
                last.detach()[:, 0] = 0
                last[:, -1] = 0
            grads = torch.autograd.grad(every.sum() + last[:, :-1].sum(), leaves)
            results.append({str(k): x for k, x in enumerate(grads)})
        compare_bitwise(results[1], results[0])
