"""Every kernel compiles for every architecture, without a GPU, and spills no register."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from flashrnn.cells import CELLS, CellSpec, get_cell
from flashrnn_cuda import alternating, catalogue
from flashrnn_cuda.compile.architectures import Architecture, parse
from flashrnn_cuda.compile.kernel import Compiled, Kernel
from flashrnn_cuda.compile.nvcc import find_nvcc
from flashrnn_cuda.compile.nvrtc import find_nvrtc
from flashrnn_cuda.plan import Layout, Pass, plan
from flashrnn_cuda.selection import device_of

ARCHITECTURES = ("8.0", "9.0a", "12.0a")
DTYPES = tuple(catalogue.TYPES)


def fused(
    cell: CellSpec,
    dtype: torch.dtype,
    architecture: Architecture,
    head_dim: int,
    plain: bool,
    exchange: str = "local",
    columns: int = 1,
) -> list[Kernel]:
    """Both passes by an exchange, for tiles of 8 * columns rows, with all options or with none."""
    device, found = device_of(architecture), []
    for direction, flag in (("forward", "SAVE"), ("backward", "OUTSIDE")):
        wanted = Pass(direction, cell, dtype.itemsize, head_dim, 1, 16 * columns, has_options=not plain)
        layout = plan(wanted, device, exchange, columns=columns)
        if isinstance(layout, Layout):
            flags = {"MASKED": not plain, "LIMITED": not plain, flag: True}
            found.append(catalogue.fused(direction, cell, dtype, layout, 16 if plain else 4, **flags))
    return found


def alternated(cell: CellSpec, dtype: torch.dtype, batch_size: int) -> list[Kernel]:
    """Both passes, with all options."""
    found = []
    for direction, flags in (("forward", {"SAVE": True}), ("backward", {})):
        cut = alternating.tile(direction, cell, batch_size)
        found.append(catalogue.alternating(direction, cell, dtype, cut.blocks, cut.columns, MASKED=True, **flags))
    return found


def check(kernels: list[Kernel], architecture: Architecture) -> None:
    """All compile, none spills."""
    compiler = find_nvrtc()
    assert compiler is not None

    def compile_anew(kernel: Kernel) -> Compiled:
        return compiler.compile(kernel, architecture.name, "--no-cache")  # from NVRTC's own cache comes no report

    with ThreadPoolExecutor(2) as pool:
        for kernel, compiled in zip(kernels, pool.map(compile_anew, kernels)):
            assert compiled.registers > 0, compiled.log
            assert compiled.spilled_bytes == 0, f"{kernel.name} spills {compiled.spilled_bytes} bytes\n{kernel.text}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cuda_fused_compiles(architecture: str, function: str, dtype: torch.dtype) -> None:
    (target,), cell = parse(architecture), get_cell(function)
    kernels = [k for D, plain in ((64, False), (64, True)) for k in fused(cell, dtype, target, D, plain)]
    assert len(kernels) == 4 or (dtype == torch.float32 and architecture == "12.0a")
    check(kernels, target)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("exchange", ["cluster", "grid", "clusters", "mailed"])
def test_other_exchanges_compile(exchange: str, architecture: str, function: str, dtype: torch.dtype) -> None:
    """For the largest heads that are common: 512 units and more in 16 bits, half of that in 32."""
    if exchange in ("cluster", "clusters") and architecture == "8.0":
        pytest.skip("8.0 has no clusters")
    (target,), cell = parse(architecture), get_cell(function)
    units = {"cluster": 512, "grid": 768, "clusters": 768, "mailed": 2048}[exchange] if architecture == "9.0a" else 128
    head_dim = units // 2 if dtype == torch.float32 else units
    kernels = fused(cell, dtype, target, head_dim, plain=dtype == torch.float16, exchange=exchange)
    assert len(kernels) == 2
    check(kernels, target)


@pytest.mark.parametrize("function", CELLS)
def test_cuda_fused_compiles_for_other_sizes(function: str) -> None:
    (target,), cell = parse("9.0a"), get_cell(function)
    cases = [(torch.bfloat16, 16), (torch.bfloat16, 128), (torch.float32, 48)]
    kernels = [k for dtype, D in cases for k in fused(cell, dtype, target, D, plain=False)]
    assert len(kernels) == 6
    check(kernels, target)


def test_tiles_of_more_rows_compile() -> None:
    (target,) = parse("9.0a")
    cases = [("slstm", 64, "local", 2), ("lstm", 256, "cluster", 2), ("gru", 768, "grid", 2), ("lstm", 768, "grid", 4)]
    cases += [("lstm", 768, "clusters", 2), ("gru", 384, "clusters", 4), ("slstm", 2048, "mailed", 2)]
    kernels = [
        kernel
        for (function, head_dim, exchange, columns), plain in itertools.product(cases, (False, True))
        for kernel in fused(get_cell(function), torch.bfloat16, target, head_dim, plain, exchange, columns)
    ]
    assert len(kernels) == 22
    check(kernels, target)


def test_what_is_planned_for_newer_gpus_compiles_for_8_0() -> None:
    """Code for 8.0 runs on a GPU of 8.9, which has less shared memory."""
    (target, newer), cell = parse("8.0;8.9"), get_cell("lstm")
    check(fused(cell, torch.float32, newer, 64, plain=False), target)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_cuda_compiles(architecture: str, function: str, dtype: torch.dtype) -> None:
    (target,), cell = parse(architecture), get_cell(function)
    batch_sizes = (1, 300) if architecture == "9.0a" else (300,)
    kernels = [k for batch_size in batch_sizes for k in alternated(cell, dtype, batch_size)]
    check([*kernels, catalogue.replay(cell, dtype)], target)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_gradient_of_R_compiles(architecture: str) -> None:
    (target,) = parse(architecture)
    kernels = [catalogue.weight_gradient(dtype, piece) for dtype, piece in itertools.product(DTYPES, (16, 4))]
    check([*kernels, catalogue.sums()], target)


def test_a_kernel_takes_seconds() -> None:
    """In time of a CPU: first use is to take at most 5 s."""
    (target,), compiler = parse("9.0a"), find_nvrtc()
    assert compiler is not None
    for kernel in fused(get_cell("slstm"), torch.bfloat16, target, 128, plain=False):
        start = time.process_time()
        compiler.compile(kernel, target.name, "--no-cache")
        assert time.process_time() - start < 5, kernel.name


def test_one_of_each_with_ninja_and_nvcc() -> None:
    nvcc, target, cell = find_nvcc(), parse("9.0a")[0], get_cell("lstm")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    exchanges = ("local", "cluster", "grid", "clusters", "mailed")
    kernels = [x for exchange in exchanges for x in fused(cell, torch.bfloat16, target, 64, False, exchange)]
    kernels += [*alternated(cell, torch.bfloat16, 16), catalogue.replay(cell, torch.bfloat16)]
    kernels += [catalogue.weight_gradient(torch.bfloat16, 16), catalogue.sums()]
    assert len(kernels) == 15
    for kernel, compiled in zip(kernels, nvcc.compile_many([(kernel, target.name) for kernel in kernels])):
        assert compiled.spilled_bytes == 0 and compiled.registers > 0, kernel.name
