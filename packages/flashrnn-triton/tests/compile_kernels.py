"""Compile the kernels of a cell for a GPU that need not be here: python compile_kernels.py FUNCTION CAPABILITY FOLDER.

For each kernel that loops over time the folder receives its intermediate code (.ttgir), its instructions (.sass) and the
bytes of shared memory (.shared).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from flashrnn import FlashRNNConfig
from flashrnn.problem import Problem
from flashrnn_triton.backward import backward_kernel, cell_constants
from flashrnn_triton.forward import forward_kernel
from flashrnn_triton.launch import constants
from flashrnn_triton.plan import FUSES_MULTIPLY_ADD, SMALL_TILES, plan

HEAD_DIM = 64
TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16"}
FIXED = {"lengths": "*i64", "resets": "*i8", "d_b": "*fp32", "clipval": "fp32", "h_bound": "fp32", "d_h_bound": "fp32"}
OPTIONAL = {"initial", "lengths", "resets", "clipval", "h_bound", "d_h_bound", "d_last", "d_initial"}


def direction_of(kernel: Any) -> str:
    """As the plan calls it."""
    return "forward" if kernel is forward_kernel else "backward"


def source_of(kernel: Any, problem: Problem, everything: bool) -> ASTSource:
    """What a launch would hand to the compiler: with every tensor and option, or with those that training needs."""
    cell = problem.cell
    known = {**constants(problem), **cell_constants(problem), **plan(problem, direction_of(kernel)).keywords()}
    known["UNIT"] = 16 // problem.dtype.itemsize
    missing = set() if everything else set(OPTIONAL)
    missing |= set() if cell.saved else {"saved"}
    missing |= set() if len(cell.gates) > len(cell.input_gates) else {"d_others"}
    signature, values, aligned = {}, {}, []
    for parameter in kernel.params:
        name = parameter.name
        if name in known or name in missing:
            signature[name], values[name] = "constexpr", known.get(name)
        else:
            signature[name] = parameter.annotation_type or FIXED.get(name, "*" + TYPES[problem.dtype])
            aligned += [name] if signature[name].startswith("*") else []
    place = {name: i for i, name in enumerate(kernel.arg_names)}
    if triton.__version__.startswith("3.0."):
        from triton.compiler.compiler import AttrsDescriptor

        kinds = {place[name]: kind for name, kind in signature.items() if kind != "constexpr"}
        attributes = AttrsDescriptor(tuple(place[name] for name in aligned), ())
        return ASTSource(kernel, kinds, {place[name]: value for name, value in values.items()}, attributes)
    return ASTSource(kernel, signature, values, {(place[name],): [["tt.divisibility", 16]] for name in aligned})


def main(function: str, capability: str, folder: str) -> None:
    """Compile both kernels in bfloat16, plain and with every option, and plain in float32.

    Before Triton 3.5 the first alone: tiles have 16 rows there, and spill in the other two.
    """
    variants = [(torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False)]
    cuobjdump = Path(nvidia.__file__).with_name("bin") / "cuobjdump"
    for kernel in (forward_kernel, backward_kernel):
        for dtype, everything in variants if SMALL_TILES else variants[:1]:
            config = FlashRNNConfig(function=function, dtype=dtype)
            problem = Problem(config, 16, 16, 1, HEAD_DIM, torch.device("cuda"), dtype, True, *3 * [everything])
            compiled = triton.compile(
                source_of(kernel, problem, everything),
                target=GPUTarget("cuda", int(capability), 32),
                options={"num_warps": plan(problem, direction_of(kernel)).warps, "enable_fp_fusion": FUSES_MULTIPLY_ADD},
            )
            path = Path(folder) / f"{kernel.arg_names[0]}-{TYPES[dtype]}-{everything}"
            path.with_suffix(".ttgir").write_text(compiled.asm["ttgir"])
            path.with_suffix(".cubin").write_bytes(compiled.asm["cubin"])
            path.with_suffix(".shared").write_text(str(compiled.metadata.shared))
            command = [str(cuobjdump), "--dump-sass", str(path.with_suffix(".cubin"))]
            sass = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            path.with_suffix(".sass").write_text(sass)


if __name__ == "__main__":
    main(*sys.argv[1:])
