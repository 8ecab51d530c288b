"""A small case of every kernel, for NVIDIA's compute-sanitizer.

compute-sanitizer --tool racecheck --error-exitcode 1 python packages/flashrnn-cuda/tests/every_kernel.py cluster

racecheck does not follow the bar.arrive of kernels/fused/product.cuh (`mailed`), and reports what it orders: for
racecheck make that a bar.sync, which is slower.

The argument is an exchange of `cuda_fused`, or `cuda` for the alternating backend; `--function` takes only that function.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext

import torch

from flashrnn import FlashRNNConfig, flashrnn
from flashrnn.cells import CELLS
from flashrnn_cuda.fused import forced
from flashrnn_testing import create_inputs
from flashrnn_testing.inputs import random_masks

EXCHANGES = ("local", "cluster", "grid", "clusters", "mailed")
CLIPPED = {"forward_clipval": 1.0, "gradient_recurrent_clipval": 1.0}


def run(function: str, backend: str, dtype: torch.dtype, masked: bool) -> None:
    """Forward and backward once; only kernels of ours and copies run on the GPU. `masked`: with all that is optional."""
    B, T, NH, D = 11, 5, 2, 40
    inputs = [x.detach().cuda().requires_grad_() for x in create_inputs(B, T, NH, D, function, dtype=dtype, device="cpu")]
    Wx, states, R, b = inputs
    lengths, resets = random_masks(B, T)
    masks = {"lengths": lengths.cuda(), "resets": resets.cuda()} if masked else {}
    config = FlashRNNConfig(function=function, backend=backend, recompute=masked, **(CLIPPED if masked else {}))
    found = flashrnn(Wx, R, b, states, config=config, **masks)
    torch.autograd.grad(found, inputs, [torch.ones(x.shape, dtype=x.dtype).cuda() for x in found])
    torch.cuda.synchronize()


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=(*EXCHANGES, "cuda"))
    parser.add_argument("--function", choices=tuple(CELLS), action="append")
    wanted = parser.parse_args()
    backend = "cuda" if wanted.kind == "cuda" else "cuda_fused"
    with forced(exchange=wanted.kind) if backend == "cuda_fused" else nullcontext():
        for function in wanted.function or CELLS:
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for masked in (False, True):
                    run(function, backend, dtype, masked)
                    print(wanted.kind, function, dtype, "masked" if masked else "plain", "ran")


if __name__ == "__main__":
    main()
