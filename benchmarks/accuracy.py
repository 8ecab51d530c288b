"""Errors of the GPU backends against float64, as the accuracy table asks for them: `python -m benchmarks.accuracy`.

Random normal inputs, R scaled by 1 / sqrt(D), T = 256, by every exchange of cuda_fused; relative norms of the differences of
h, dWx, dR and db from vanilla in float64. Exits with 1 if one is larger than what is to be reached.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import product

import torch
from torch import Tensor

from flashrnn import BackendUnavailable, flashrnn
from flashrnn.cells import CELLS
from flashrnn_cuda.fused import forced
from flashrnn_testing import create_inputs

NAMES = ("h", "dWx", "dR", "db")
TO_REACH = {
    torch.bfloat16: (0.0025, 0.006, 0.006, 0.006),
    torch.float16: (0.0004, 0.001, 0.001, 0.001),
    torch.float32: (1e-6, 3e-6, 3e-6, 3e-6),
}
BACKENDS = (
    "cuda_fused",
    "cuda_fused local",
    "cuda_fused cluster",
    "cuda_fused grid",
    "cuda_fused clusters",
    "cuda_fused mailed",
    "cuda",
    "triton_fused",
)
"""A name, and of cuda_fused the exchange that is forced."""
SIZES = {"batch_size": 16, "sequence_size": 256, "num_heads": 4}
HEAD_DIMS = (64, 256)


def results(function: str, backend: str, inputs: list[Tensor], grad: Tensor) -> list[Tensor]:
    """h of all steps, and the gradients of Wx, R and b, in float64."""
    Wx, R, b = (x.detach().requires_grad_() for x in inputs)
    states, _ = flashrnn(Wx, R, b, function=function, backend=backend)
    gradients = torch.autograd.grad(states[0], (Wx, R, b), grad.to(states.dtype))
    return [x.detach().double() for x in (states[0], *gradients)]


def errors(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """Relative norms of the differences, in the order of NAMES."""
    return [float((x - y).norm() / y.norm()) for x, y in zip(found, exact)]


def main() -> int:
    """Print the table."""
    missed = 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {SIZES}")
    print(f"{'backend':21}{'function':10}{'D':5}{'dtype':10}" + "".join(f"{name:>20}" for name in NAMES))
    for head_dim, function, (dtype, bounds) in product(HEAD_DIMS, CELLS, TO_REACH.items()):
        shape = {**SIZES, "head_dim": head_dim}
        inputs = [*create_inputs(**shape, function=function, create_states=False, dtype=dtype, device="cuda")]
        B, T, _, NH, D = inputs[0].shape
        grad = torch.randn(B, T, NH, D, device="cuda").to(dtype)
        exact = results(function, "vanilla", [x.detach().double() for x in inputs], grad)
        for backend in BACKENDS:
            case = f"{backend:21}{function:10}{head_dim:<5}{str(dtype)[6:]:10}"
            name, _, exchange = backend.partition(" ")
            try:
                with forced(exchange=exchange) if exchange else nullcontext():
                    found = errors(results(function, name, inputs, grad), exact)
            except BackendUnavailable as reason:
                print(f"{case}  {reason}")
                continue
            missed += sum(error > bound for error, bound in zip(found, bounds))
            print(case + "".join(f"{f'{error:.1e} / {bound:.1e}':>20}" for error, bound in zip(found, bounds)))
    print("all reached" if not missed else f"{missed} missed")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
