"""The pointwise mathematics in CUDA, compiled by g++, is that of core's cells."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from flashrnn.cells import CELLS, CellSpec, get_cell
from flashrnn.cells.spec import Tensors
from flashrnn.dtypes import accumulate_dtype
from flashrnn_cuda.compile.sources import KERNELS

COUNT = 4096
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.bfloat16: 2e-6, torch.float16: 2e-6}
"""By what would be stored; computed is in float64 for the first, in float32 for the others."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    out = tmp_path_factory.mktemp("cells") / "cells.so"
    source = Path(__file__).with_name("cells_on_the_host.cpp")
    flags = ["-std=c++17", "-O1", "-Wall", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC", f"-I{KERNELS}"]
    subprocess.run([compiler, *flags, str(source), "-o", str(out)], check=True)
    return ctypes.CDLL(str(out))


def call(library: ctypes.CDLL, name: str, dtype: torch.dtype, *tensors: Tensor) -> None:
    """Call a function of the library on contiguous tensors; `dtype` is that of what would be stored."""
    assert all(x.is_contiguous() and x.dtype == accumulate_dtype(dtype) for x in tensors)
    suffix = str(dtype).replace("torch.", "")
    getattr(library, f"{name}_{suffix}")(COUNT, *(ctypes.c_void_p(x.data_ptr()) for x in tensors))


def inputs(function: str, dtype: torch.dtype, extreme: bool) -> tuple[Tensor, Tensor]:
    """Pre-activations and old states, as a cell can meet them."""
    torch.manual_seed(0)
    cell, dtype = get_cell(function), accumulate_dtype(dtype)
    gates, states = torch.randn(len(cell.gates), COUNT, dtype=dtype), torch.randn(cell.num_states, COUNT, dtype=dtype)
    if extreme:
        gates *= 60
    if function == "slstm":
        states[2] = states[2].abs() + 1
        fresh = torch.arange(COUNT) % 3 == 0
        states[2, fresh] = 0
        states[1, fresh & (torch.arange(COUNT) % 2 == 0)] = 0
        states[1, fresh] *= 1e-3
    return gates, states


def step(cell: CellSpec, gates: Tensor, states: Tensor, dtype: torch.dtype) -> tuple[Tensors, Tensors]:
    """Core's new states and what it saves."""
    options = {"dtype": dtype} if cell.step_takes_dtype else {}
    return cell.step(gates.unbind(0), states.unbind(0), **options)


def worst(actual: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """The largest error of any tensor, relative to the tensor's size."""
    errors = [(x - y).abs().max() / y.abs().max().clamp(min=1e-30) for x, y in zip(actual, expected) if y.abs().max() > 0]
    return max(map(float, errors), default=0.0)


@pytest.mark.parametrize("function", CELLS)
def test_counts_are_those_of_the_cell(library: ctypes.CDLL, function: str) -> None:
    cell, counts = get_cell(function), (ctypes.c_int * 7)()
    getattr(library, f"{function}_describe")(counts)
    constant = sum(1 << s for s, name in enumerate(cell.states) if name in cell.constant_states)
    named = (cell.states, cell.gates, cell.recurrent_gates, cell.input_gates, cell.bias_gates, cell.saved)
    assert list(counts) == [*map(len, named), constant]


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("function", CELLS)
def test_step(library: ctypes.CDLL, function: str, dtype: torch.dtype, extreme: bool) -> None:
    cell = get_cell(function)
    gates, states = inputs(function, dtype, extreme)
    new, saved = step(cell, gates, states, dtype)
    found, kept = states.clone(), torch.full((max(len(cell.saved), 1), COUNT), float("nan"), dtype=gates.dtype)
    call(library, f"{function}_step", dtype, gates, found, kept)
    assert found.isfinite().all()
    assert worst(found.unbind(0), new) < TOLERANCE[dtype]
    assert worst(kept.unbind(0), saved) < TOLERANCE[dtype]
    for mine, core in zip(kept, saved):
        assert torch.equal(mine.signbit(), core.signbit()), "decisions are kept in signs"


@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("function", CELLS)
def test_step_backward(library: ctypes.CDLL, function: str, dtype: torch.dtype, extreme: bool) -> None:
    cell = get_cell(function)
    gates, states = inputs(function, dtype, extreme)
    new, saved = step(cell, gates, states, dtype)
    grads = torch.randn_like(states)
    derivatives = cell.derivatives(saved, states.unbind(0), new)
    d_gates, d_states = cell.step_backward(grads.unbind(0), derivatives)
    expected = [torch.zeros_like(gates[0]) if x is None else x for x in d_states]
    found, d_found = torch.full_like(gates, float("nan")), grads.clone()
    kept = torch.stack(saved) if saved else torch.zeros_like(gates[:1])
    call(library, f"{function}_step_backward", dtype, d_found, kept, states, torch.stack(new), found)
    assert found.isfinite().all() and d_found.isfinite().all()
    assert worst(found.unbind(0), d_gates) < TOLERANCE[dtype]
    assert worst(d_found.unbind(0), expected) < TOLERANCE[dtype]
