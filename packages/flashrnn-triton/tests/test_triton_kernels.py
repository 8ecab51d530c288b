"""The kernels as they are compiled, for GPUs that need not be here: what they keep where, and what they are compiled for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import torch

from flashrnn import FlashRNNConfig, flashrnn
from flashrnn.problem import Problem
from flashrnn_testing import create_inputs
from flashrnn_triton.launch import constants, strides
from flashrnn_triton.plan import TRITON, plan

FUNCTIONS = ("lstm", "gru", "elman", "slstm")
LOCAL = re.compile(r"\b(LDL|STL)\b")
LEAST_SHARED_MEMORY = 99 * 1024  # of compute capability 8.6 and 8.9


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_R_stays_on_the_chip_and_nothing_is_spilled(function: str, capability: int, tmp_path: Path) -> None:
    """Compiled in a process of its own: in this one Triton may interpret."""
    program = [sys.executable, str(Path(__file__).with_name("compile_kernels.py")), function, str(capability), str(tmp_path)]
    env = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(program, check=True, env=env)
    names = sorted(path.stem for path in tmp_path.glob("*.ttgir"))
    assert len(names) >= 2
    for name in names:
        instructions = instructions_of_the_loop((tmp_path / f"{name}.sass").read_text())
        spills = [line for line in instructions if LOCAL.search(line)]
        assert not spills, f"{name}: {spills}"
        assert int((tmp_path / f"{name}.shared").read_text()) <= LEAST_SHARED_MEMORY, name
        if "bf16" in name:
            assert not any("FFMA" in line for line in instructions), f"{name}: it rounds as the compiler pleases"
        if "bf16" in name and TRITON >= (3, 6):
            assert sum("BAR.SYNC" in line for line in instructions) <= 3, f"{name}: warps exchange more than columns"
        before, loop = around_the_loop((tmp_path / f"{name}.ttgir").read_text())
        matrices = {"elman": 1, "gru": 3, "lstm": 4, "slstm": 4}[function]
        assert loads_of_R(before) == matrices, name
        assert loads_of_R(loop) == 0, name


def around_the_loop(ttgir: str) -> tuple[str, str]:
    """The lines before the loop over time, and those inside it."""
    before, _, after = ttgir.partition("scf.for")
    loop, _, rest = after.partition("scf.yield")
    assert "scf.for" not in after and "tt.store" in loop and "tt.return" in rest
    return before, loop


def instructions_of_the_loop(sass: str) -> list[str]:
    """From the target of the farthest jump back to that jump."""
    lines = {
        int(address, 16): line for address, line in re.findall(r"^\s+/\*([0-9a-f]{4,5})\*/\s+(.*);", sass, re.MULTILINE)
    }
    jumps = [(int(x[1], 16), at) for at, line in lines.items() if (x := re.search(r"\bBRA\b.*\b0x([0-9a-f]+)", line))]
    start, end = max(((start, end) for start, end in jumps if start < end), key=lambda jump: jump[1] - jump[0])
    loop = [line for address, line in lines.items() if start <= address <= end]
    assert any("STG" in line for line in loop)
    return loop


def loads_of_R(ttgir: str) -> int:
    """R is all that is read in squares of pointers."""
    reads = [line for line in ttgir.splitlines() if "tt.load" in line or "async_copy" in line]
    return sum("tensor<64x64x!tt.ptr" in line for line in reads)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("head_dim", [1, 16, 64])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_constants_hold_neither_B_nor_T_nor_NH(function: str, head_dim: int, direction: str) -> None:
    found = set()
    for B, T, NH in product((1, 15, 16, 64), (1, 7, 1024), (1, 3, 16)):
        config = FlashRNNConfig(function=function, dtype=torch.bfloat16)
        problem = Problem(config, B, T, NH, head_dim, torch.device("cuda"), torch.bfloat16)
        Wx = torch.empty((B, T, 4, NH, head_dim), device="meta")
        unit = strides(problem, Wx=(Wx, "btgn"))["UNIT"]
        found.add((*constants(problem).values(), *plan(problem, direction).keywords().values(), unit))
    assert len(found) == 1


@pytest.mark.gpu
def test_other_batch_sizes_and_lengths_compile_nothing() -> None:
    from flashrnn_triton.backward import backward_kernel
    from flashrnn_triton.forward import forward_kernel
    from flashrnn_triton.gradients import weight_gradient_kernel

    def compiled() -> int:
        kernels = (forward_kernel, backward_kernel, weight_gradient_kernel)
        caches = [getattr(kernel, "device_caches", None) or kernel.cache for kernel in kernels]
        return sum(len(x[0] if isinstance(x, tuple) else x) for cache in caches for x in cache.values())

    counts = []
    for B, T, NH in ((1, 1, 1), (16, 16, 16), (3, 5, 2), (17, 33, 1), (1, 64, 3)):
        leaves = create_inputs(B, T, NH, 16, "lstm", dtype="bfloat16", device="cuda")
        Wx, states, R, b = leaves
        every, last = flashrnn(Wx, R, b, states, function="lstm", backend="triton_fused")
        torch.autograd.grad((every, last), leaves, (torch.ones_like(every), torch.ones_like(last)))
        counts.append(compiled())
    assert counts[0] >= 3 and len(set(counts)) == 1
