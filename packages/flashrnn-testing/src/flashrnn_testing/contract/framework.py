"""Life inside PyTorch: autocast, checkpointing, torch.compile, streams, graphs; and honest refusals."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from flashrnn import BackendUnavailable, explain, flashrnn

from ..compare import check_close
from ..results import compare_bitwise
from .base import ContractBase


class FrameworkTests(ContractBase):
    """Life inside PyTorch."""

    def test_autocast_after_a_pass_without_gradients(self, function: str, device: str) -> None:
        """Inside autocast all is computed in its dtype, gradients come back in float32, nothing depends on earlier calls."""
        if torch.bfloat16 not in self.dtypes:
            pytest.skip(f"{self.backend} does not claim bfloat16")
        leaves = [x.detach().clone().requires_grad_() for x in self.case(function, device)]
        with torch.autocast(device, dtype=torch.bfloat16):
            with torch.no_grad():
                before, _ = flashrnn(*leaves, config=self.config(function))
            every, last = flashrnn(*leaves, config=self.config(function))
            loss = every.float().square().sum() + last.square().sum()
        loss.backward()
        explicit = [x.detach().clone().requires_grad_() for x in leaves]
        outside, outside_last = flashrnn(*explicit, config=self.config(function, dtype="bfloat16"))
        (outside.float().square().sum() + outside_last.square().sum()).backward()
        assert every.dtype == torch.bfloat16
        compare_bitwise({"no grad": before, "states": every}, {"no grad": outside, "states": outside})
        compare_bitwise({str(k): x.grad for k, x in enumerate(leaves)}, {str(k): x.grad for k, x in enumerate(explicit)})

    def test_backward_inside_autocast(self, function: str, device: str) -> None:
        results = []
        for enabled in (False, True):
            leaves = [x.detach().clone().requires_grad_() for x in self.case(function, device, self.dtypes[0])]
            every, _ = flashrnn(*leaves, config=self.config(function))
            with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
                grads = torch.autograd.grad(every, leaves, torch.ones_like(every))
            results.append({str(k): x for k, x in enumerate(grads)})
        compare_bitwise(*results)

    def test_checkpointing(self, function: str, device: str) -> None:
        results = []
        for wrapped in (False, True):
            leaves = [x.detach().clone().requires_grad_() for x in self.case(function, device, self.dtypes[0])]

            def run(*tensors: torch.Tensor) -> torch.Tensor:
                return flashrnn(*tensors, config=self.config(function))[0]

            every = checkpoint(run, *leaves, use_reentrant=False) if wrapped else run(*leaves)
            every.square().sum().backward()
            results.append({"states": every, **{str(k): x.grad for k, x in enumerate(leaves)}})
        compare_bitwise(*results)

    @pytest.mark.parametrize("dynamic", [False, True])
    def test_compiles_without_graph_break(self, function: str, device: str, dynamic: bool) -> None:
        torch._dynamo.reset()

        def loss(*tensors: torch.Tensor) -> torch.Tensor:
            every, last = flashrnn(*tensors, function=function, backend=self.backend)
            return every.square().sum() + last.square().sum()

        compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for batch_size, sequence_size in ((3, 2), (4, 3)) if dynamic else ((3, 2),):
            leaves = [
                x.detach().clone().requires_grad_()
                for x in self.case(function, device, self.dtypes[0], batch_size, sequence_size)
            ]
            expected = torch.autograd.grad(loss(*leaves), leaves)
            got = torch.autograd.grad(compiled(*leaves), leaves)
            for name, x, y in zip(("Wx", "R", "b", "states"), got, expected):
                check_close(f"gradient of {name}", x, y, gradient=True)

    def test_named_backend_runs_or_says_why_not(self, function: str, device: str) -> None:
        """Over a sweep of problems: it never raises from why_not, and what explain says is what a call does."""
        for head_dim in (1, 64, 129):
            for dtype in ("float16", "bfloat16", "float32", "float64"):
                told = explain(2, 2, 1, head_dim, function, backend=self.backend, dtype=dtype, device=device)
                reason = told.reasons[self.backend]
                case = self.case(function, device, getattr(torch, dtype), 2, 2, 1, head_dim)
                if reason is None:
                    assert told.backend == self.backend
                    flashrnn(*case, function=function, backend=self.backend)
                else:
                    assert told.backend is None
                    with pytest.raises(BackendUnavailable) as error:
                        flashrnn(*case, function=function, backend=self.backend)
                    assert str(error.value) == reason

    @pytest.mark.gpu
    def test_side_stream(self, function: str) -> None:
        case = self.case(function, "cuda", self.dtypes[0], sequence_size=32)
        expected = self.run(function, case)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            got = self.run(function, case)
        stream.synchronize()
        compare_bitwise(got, expected)

    @pytest.mark.gpu
    def test_graph_capture_and_replay(self, function: str) -> None:
        case = [x.detach() for x in self.case(function, "cuda", self.dtypes[0])]

        def run() -> dict[str, torch.Tensor]:
            leaves = [x.detach().requires_grad_() for x in case]  # the same memory, no node of another stream's graph
            every, last = flashrnn(*leaves, config=self.config(function))
            grads = torch.autograd.grad((every, last), leaves, (torch.ones_like(every), torch.ones_like(last)))
            return {"states": every, **{str(k): x for k, x in enumerate(grads)}}

        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        case[0].mul_(0.5)
        graph.replay()
        torch.cuda.synchronize()
        replayed = {name: x.detach().clone() for name, x in captured.items()}
        compare_bitwise(replayed, {name: x.detach() for name, x in run().items()})
