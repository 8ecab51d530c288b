"""What is built ahead of time is what calls ask for, on every GPU that runs it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch

from flashrnn.cells import CELLS, get_cell
from flashrnn_cuda import catalogue
from flashrnn_cuda.compile.architectures import Architecture, architecture_for, architectures, parse
from flashrnn_cuda.compile.kernel import Kernel
from flashrnn_cuda.device import Device
from flashrnn_cuda.plan import Layout, Pass, plan
from flashrnn_cuda.selection import DEVICES, DIRECTIONS, device_of, devices_for, kernels_for

BY_NAME = {device.name: device for device in DEVICES}
SMALL_AND_LARGE = {"RTX 3090": (20, 84), "RTX 4090": (24, 142), "H200": (78, 132), "RTX 5090": (30, 188)}
"""SMs of the smallest and the largest GPU of the same compute capability. Source: the vendor's data sheets."""


def test_ahead_of_time_are_the_kernels_of_a_training_run() -> None:
    devices = [BY_NAME["H200"]]
    one = kernels_for(["lstm"], [64], [torch.bfloat16], ["cuda_fused"], devices)
    names = {kernel.name for kernel in one}
    assert {"fused forward lstm bfloat16 D=64", "fused backward lstm bfloat16 D=64"} <= names
    assert len(set(one)) == len(one)
    more = kernels_for(["lstm", "gru"], [64, 128], [torch.bfloat16], ["cuda_fused", "cuda"], devices)
    assert set(one) < set(more)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("function", CELLS)
def test_what_a_call_asks_for_is_what_was_built(function: str, save: bool, limited: bool) -> None:
    """The order in which the flags are given makes no other kernel."""
    device, cell = BY_NAME["H200"], get_cell(function)
    built = set(kernels_for([function], [64], [torch.bfloat16], ["cuda_fused"], [device]))
    for direction, flags in (
        ("forward", {"MASKED": False, "SAVE": save, "LIMITED": limited}),
        ("backward", {"MASKED": True, "LIMITED": limited, "OUTSIDE": save}),
    ):
        layout = plan(Pass(direction, cell, 2, 64, 12, 16, flags["MASKED"] or limited), device)
        assert isinstance(layout, Layout)
        assert catalogue.fused(direction, cell, torch.bfloat16, layout, 16, **flags) in built


def asked_for(
    device: Device, function: str, dtype: torch.dtype, head_dim: int, num_heads: int, batch_size: int
) -> list[Kernel]:
    """The fused kernels of a call without options."""
    cell, found = get_cell(function), []
    for direction, flag in zip(DIRECTIONS, ("SAVE", "OUTSIDE")):
        layout = plan(Pass(direction, cell, dtype.itemsize, head_dim, num_heads, batch_size, has_options=False), device)
        if isinstance(layout, Layout):
            flags = {"MASKED": False, "LIMITED": False, flag: True}
            found.append(catalogue.fused(direction, cell, dtype, layout, 16, **flags))
    return found


@pytest.mark.parametrize("name", SMALL_AND_LARGE)
@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.bfloat16, 64), (torch.bfloat16, 512), (torch.float32, 128)])
def test_no_batch_and_no_gpu_of_that_capability_asks_for_more(name: str, dtype: torch.dtype, head_dim: int) -> None:
    built = set(kernels_for(["gru"], [head_dim], [dtype], ["cuda_fused"], [BY_NAME[name]]))
    for multiprocessors, num_heads, tiles in product(SMALL_AND_LARGE[name], (1, 5, 12), (*range(1, 80, 7), 200)):
        device = replace(BY_NAME[name], multiprocessors=multiprocessors)
        asked = asked_for(device, "gru", dtype, head_dim, num_heads, 8 * tiles)
        assert set(asked) <= built, (multiprocessors, num_heads, tiles)


@pytest.mark.parametrize("text", ["8.0", "8.0;8.6", "8.9;8.0", "8.0;8.6;8.9;9.0", "8.0;9.0a", "10.0;12.0"])
def test_every_gpu_finds_its_kernels_in_what_it_is_given(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """One of compute capability 8.6 that runs code for 8.0 has less shared memory than an A100."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", text)
    entries, what = architectures(None, []), (["lstm"], [128], [torch.bfloat16], ["cuda_fused"])
    built = {entry.name: set(kernels_for(*what, devices_for(entry, entries))) for entry in entries}
    served = [device for device in DEVICES if any(entry.serves(device.capability) for entry in entries)]
    for device in served:
        name = architecture_for(device.capability).name
        assert set(asked_for(device, "lstm", torch.bfloat16, 128, 12, 16)) <= built[name], device.name
    assert len(served) >= 2


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("8.0", [["A100", "RTX 3090", "Jetson Orin", "RTX 4090"]]),
        ("8.6", [["RTX 3090", "Jetson Orin", "RTX 4090"]]),
        ("8.0;8.9", [["A100", "RTX 3090", "Jetson Orin"], ["RTX 4090"]]),
        ("8.0;8.6;8.9", [["A100"], ["RTX 3090", "Jetson Orin"], ["RTX 4090"]]),
        ("9.0;9.0a", [["H200"], ["H200"]]),
        ("10.0", [["B200", "B300"]]),
        ("12.1", [["RTX 5090"]]),
    ],
)
def test_for_which_gpus_an_entry_is_planned(text: str, names: list[list[str]]) -> None:
    entries = parse(text)
    assert [[device.name for device in devices_for(entry, entries)] for entry in entries] == names


def test_a_gpu_that_is_here_counts() -> None:
    here = Device("RTX 4060", (8, 9), 24, 99 * 1024)
    entries = parse("8.0;9.0")
    assert here in devices_for(entries[0], entries, [here]) and here not in devices_for(entries[1], entries, [here])


def test_a_capability_that_is_not_in_the_table() -> None:
    (device,) = devices_for(Architecture((12, 1)), [Architecture((12, 1))])
    assert device == replace(BY_NAME["RTX 5090"], capability=(12, 1)) == device_of(Architecture((12, 1)))
