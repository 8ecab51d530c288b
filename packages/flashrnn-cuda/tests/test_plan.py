"""The plan, for GPUs that are not there."""

from __future__ import annotations

import pytest

from flashrnn.cells import CELLS, get_cell
from flashrnn_cuda.device import Device
from flashrnn_cuda.plan import Layout, moved_states, plan
from flashrnn_cuda.selection import DEVICES

BY_NAME = {device.name: device for device in DEVICES}
DIRECTIONS = ("forward", "backward")


def layouts(function: str, item_bytes: int, head_dim: int, device: Device) -> list[object]:
    cell = get_cell(function)
    return [plan(d, cell, item_bytes, head_dim, moved_states(d, cell), device) for d in DIRECTIONS]


@pytest.mark.parametrize(
    ("device", "function", "item_bytes", "head_dim"),
    [
        *(("H200", function, 2, 128) for function in CELLS),
        *(("H200", function, 4, 64) for function in CELLS),
        *(("B200", function, 2, 128) for function in CELLS),
        *(("A100", function, 2, 112) for function in CELLS),
        *(("A100", function, 4, 64) for function in CELLS),
        *(("RTX 4090", function, 2, 64) for function in CELLS),
        ("RTX 4090", "gru", 4, 64),
        ("H200", "elman", 2, 192),
    ],
)
def test_fits_one_sm(device: str, function: str, item_bytes: int, head_dim: int) -> None:
    for found in layouts(function, item_bytes, head_dim, BY_NAME[device]):
        assert isinstance(found, Layout), found


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize("function", CELLS)
def test_keeps_within_the_device(function: str, item_bytes: int, device: Device) -> None:
    for head_dim in range(1, 260, 7):
        for found in layouts(function, item_bytes, head_dim, device):
            if isinstance(found, Layout):
                assert found.exchange == "local"
                assert found.shared_bytes <= device.shared_bytes
                assert found.threads <= 1024 and found.threads % 32 == 0
                assert head_dim <= found.D < head_dim + 16 and found.D % 16 == 0
                assert found.D % (8 * found.blocks) == 0
                assert found.kept >= 0 and found.stages >= 3
            else:
                assert f"head_dim {head_dim}" in str(found)
                assert function in str(found)
                assert device.name in str(found)
                assert "backend='cuda'" in str(found)


def test_is_a_function_of_head_dim_alone() -> None:
    """Neither B nor T nor NH can be asked for, so none of them builds another kernel."""
    cell, device = get_cell("lstm"), BY_NAME["H200"]
    assert plan("forward", cell, 2, 64, 2, device) == plan("forward", cell, 2, 60, 2, device)
