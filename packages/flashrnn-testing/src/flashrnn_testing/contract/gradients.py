"""Gradients: whichever outputs are used and whichever inputs are frozen; never wrong in silence."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from flashrnn import DoubleBackwardError, flashrnn
from flashrnn.cells import get_cell

from ..inputs import loss_weights
from ..results import compare, compare_bitwise, compute
from .base import ContractBase

INPUTS = ("Wx", "R", "b", "states")


class GradientTests(ContractBase):
    """Gradients."""

    @pytest.mark.parametrize("output", ["states", "last_states"])
    def test_either_output_alone(self, function: str, dtype: torch.dtype, device: str, output: str) -> None:
        case = self.case(function, device, dtype)
        expected = compute(self.reference_config(function), *case, outputs=[output])
        compare(self.run(function, case, outputs=[output]), expected, dtype)

    def test_where_the_first_gate_is_shut(self, function: str, dtype: torch.dtype, device: str) -> None:
        """In slstm exp(i - m) is then 0, and what is saved must still say that it is not the 1 that the other one is."""
        case = self.case(function, device, dtype)
        with torch.no_grad():
            for gate, value in enumerate((-200, 6)[: case[0].shape[2]]):
                case[0][:, 1:, gate] = value
        compare(self.run(function, case), compute(self.reference_config(function), *case), dtype)

    def test_every_single_state_alone(self, function: str, device: str) -> None:
        """Every state of every step, and every last one, alone in the loss."""
        dtype = self.dtypes[0]
        case = self.case(function, device, dtype)
        for output in range(2):
            for state in range(get_cell(function).num_states):
                grads = []
                for config in (self.config(function), self.reference_config(function)):
                    leaves = [x.detach().clone().requires_grad_() for x in case]
                    chosen = flashrnn(*leaves, config=config)[output][state]
                    loss = (chosen * loss_weights(chosen, seed=0)).sum()
                    if loss.requires_grad:
                        loss.backward()
                    zeros = [torch.zeros_like(x) for x in leaves]
                    grads.append(
                        {f"gradient of {n}": z if x.grad is None else x.grad for n, x, z in zip(INPUTS, leaves, zeros)}
                    )
                compare(grads[0], grads[1], dtype)

    def test_every_subset_of_frozen_inputs(self, function: str, device: str) -> None:
        """What is asked for comes, equal to the bit to when all is asked for; what is frozen gets nothing."""
        case = self.case(function, device, self.dtypes[0])
        everything = self._gradients(function, case, INPUTS)
        for count in range(1, len(INPUTS)):
            for wanted in combinations(INPUTS, count):
                some = self._gradients(function, case, wanted)
                compare_bitwise(some, {name: everything[name] for name in wanted})

    def _gradients(self, function, case, wanted):  # type: ignore[no-untyped-def]
        leaves = {n: x.detach().clone().requires_grad_(n in wanted) for n, x in zip(INPUTS, case)}
        every, last = flashrnn(*leaves.values(), config=self.config(function))
        (every * loss_weights(every, 0)).sum().backward(inputs=[leaves[name] for name in wanted], retain_graph=True)
        (last * loss_weights(last, 1)).sum().backward(inputs=[leaves[name] for name in wanted])
        assert all(x.grad is None for name, x in leaves.items() if name not in wanted)
        return {name: leaves[name].grad for name in wanted}

    def test_all_inputs_frozen(self, function: str, dtype: torch.dtype, device: str) -> None:
        every, last = flashrnn(*(x.detach() for x in self.case(function, device, dtype)), config=self.config(function))
        assert not every.requires_grad
        assert not last.requires_grad

    def test_backward_twice_over_one_graph(self, function: str, dtype: torch.dtype, device: str) -> None:
        """Nothing that was saved is written to: the second and third backward pass equal the first, to the bit."""
        leaves = [x.detach().clone().requires_grad_() for x in self.case(function, device, dtype)]
        before = [x.detach().clone() for x in leaves]
        every, last = flashrnn(*leaves, config=self.config(function))
        loss = (every * loss_weights(every, 0)).sum() + (last * loss_weights(last, 1)).sum()
        first, *others = (torch.autograd.grad(loss, leaves, retain_graph=True) for _ in range(3))
        for again in others:
            assert all(torch.equal(x, y) for x, y in zip(first, again))
        assert all(torch.equal(x, y) for x, y in zip(leaves, before))

    def test_second_derivatives_or_an_error(self, function: str, device: str) -> None:
        leaves = [x.detach().clone().requires_grad_() for x in self.case(function, device, self.dtypes[0])]
        every, _ = flashrnn(*leaves, config=self.config(function))
        grads = torch.autograd.grad(every[0].square().sum(), leaves, create_graph=True)
        if self.has_second_derivatives:
            torch.autograd.grad(grads[1].square().sum(), leaves)
        else:
            for grad in grads[:3]:
                with pytest.raises(DoubleBackwardError, match="vanilla"):
                    torch.autograd.grad(grad.square().sum(), leaves, retain_graph=True)

    def test_gradients_have_the_dtype_of_their_inputs(self, function: str, dtype: torch.dtype, device: str) -> None:
        leaves = [x.detach().float().requires_grad_() for x in self.case(function, device, dtype)]
        every, _ = flashrnn(*leaves, config=self.config(function, dtype=dtype))
        assert every.dtype == dtype
        every.float().sum().backward()
        assert [x.grad.dtype for x in leaves] == [torch.float32] * len(leaves)
