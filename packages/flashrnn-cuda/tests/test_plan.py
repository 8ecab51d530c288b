"""The plan, for GPUs that are not there."""

from __future__ import annotations

import pytest

from flashrnn.cells import CELLS, get_cell
from flashrnn_cuda.device import Device
from flashrnn_cuda.plan import Layout, Pass, layouts, plan
from flashrnn_cuda.selection import DEVICES

H100 = Device("H100 PCIe", (9, 0), 114, 227 * 1024)
BY_NAME = {device.name: device for device in (*DEVICES, H100)}
DIRECTIONS = ("forward", "backward")


def passes(function: str, item_bytes: int, head_dim: int, num_heads: int = 12, batch_size: int = 16) -> list[Pass]:
    return [Pass(direction, get_cell(function), item_bytes, head_dim, num_heads, batch_size) for direction in DIRECTIONS]


@pytest.mark.parametrize(
    ("device", "function", "item_bytes", "head_dim"),
    [
        *(("H200", function, 2, 128) for function in CELLS),
        *(("H200", function, 4, 64) for function in CELLS),
        *(("H100 PCIe", function, 2, 128) for function in CELLS),
        *(("B200", function, 2, 128) for function in CELLS),
        *(("A100", function, 2, 112) for function in CELLS),
        *(("A100", function, 4, 64) for function in CELLS),
        *(("RTX 4090", function, 2, 64) for function in CELLS),
        ("RTX 4090", "gru", 4, 64),
        ("H200", "elman", 2, 192),
    ],
)
def test_fits_one_sm(device: str, function: str, item_bytes: int, head_dim: int) -> None:
    for wanted in passes(function, item_bytes, head_dim):
        assert isinstance(plan(wanted, BY_NAME[device], ctas=1), Layout)


@pytest.mark.parametrize(
    ("device", "function", "item_bytes", "head_dim"),
    [
        *(("H200", function, 2, 512) for function in CELLS),
        *(("H200", function, 4, 256) for function in CELLS),
        *(("H100 PCIe", function, 2, 512) for function in CELLS),
        *(("B200", function, 2, 512) for function in CELLS),
        *(("RTX 5090", function, 2, 128) for function in CELLS),
    ],
)
def test_fits_a_cluster(device: str, function: str, item_bytes: int, head_dim: int) -> None:
    for wanted in passes(function, item_bytes, head_dim):
        assert isinstance(plan(wanted, BY_NAME[device]), Layout)


@pytest.mark.parametrize(
    ("head_dim", "num_heads", "batch_size", "ctas", "rows"),
    [
        (64, 12, 16, 1, 8),
        (128, 6, 16, 4, 8),
        (256, 3, 16, 8, 8),
        (512, 1, 16, 16, 8),
        (768, 1, 16, 48, 8),
        (768, 1, 1, 96, 8),
        (1024, 1, 16, 64, 8),
        (768, 1, 64, 32, 16),
        (768, 1, 256, 32, 32),
        (128, 500, 16, 2, 16),
    ],
)
def test_takes_the_fastest_on_an_h200(head_dim: int, num_heads: int, batch_size: int, ctas: int, rows: int) -> None:
    """As measured, see benchmarks/LOG.md; the last by the model alone, where many waves count more than a step."""
    found = plan(passes("lstm", 2, head_dim, num_heads, batch_size)[0], BY_NAME["H200"])
    assert isinstance(found, Layout) and (found.ctas, found.rows) == (ctas, rows)


@pytest.mark.parametrize(
    ("function", "head_dim", "batch_size", "exchange", "ctas", "cluster", "rows"),
    [
        ("lstm", 512, 16, "cluster", 16, 16, 8),
        ("lstm", 768, 16, "clusters", 48, 8, 8),
        ("slstm", 768, 16, "clusters", 48, 8, 8),
        ("gru", 768, 16, "clusters", 48, 8, 8),
        ("elman", 768, 16, "mailed", 32, 1, 8),
        ("lstm", 768, 64, "clusters", 24, 8, 16),
        ("lstm", 768, 256, "clusters", 24, 8, 16),
    ],
)
def test_takes_the_fastest_way_back_on_an_h200(
    function: str, head_dim: int, batch_size: int, exchange: str, ctas: int, cluster: int, rows: int
) -> None:
    found = plan(passes(function, 2, head_dim, 1, batch_size)[1], BY_NAME["H200"])
    assert isinstance(found, Layout)
    assert (found.exchange, found.ctas, found.cluster, found.rows) == (exchange, ctas, cluster, rows)


@pytest.mark.parametrize("direction", [0, 1])
@pytest.mark.parametrize("function", CELLS)
def test_trains_2048_units_on_an_h200(function: str, direction: int) -> None:
    found = plan(passes(function, 2, 2048, 1, 16)[direction], BY_NAME["H200"])
    assert isinstance(found, Layout) and found.exchange in ("mailed", "clusters")


@pytest.mark.parametrize(("function", "head_dim"), [*((function, 768) for function in CELLS), ("lstm", 1024)])
def test_all_of_r_stays_in_registers_where_operands_come_by_mail(function: str, head_dim: int) -> None:
    found = plan(passes(function, 2, head_dim, 1, 16)[0], BY_NAME["H200"])
    assert isinstance(found, Layout) and found.exchange == "mailed"
    pieces, warps = head_dim // 8, found.threads // 32  # 16 bytes of a row, of which a warp takes 4 at 2 steps along k
    assert found.kept == found.helpers_kept == 2 * -(-pieces // (4 * warps))


def test_an_older_device_has_no_clusters() -> None:
    found = {layout.exchange for wanted in passes("lstm", 2, 64) for layout in layouts(wanted, BY_NAME["A100"])}
    assert found == {"local", "grid", "mailed"}


@pytest.mark.parametrize("device", BY_NAME.values(), ids=lambda device: device.name)
@pytest.mark.parametrize("item_bytes", [2, 4])
@pytest.mark.parametrize("function", CELLS)
def test_keeps_within_the_device(function: str, item_bytes: int, device: Device) -> None:
    for head_dim in range(1, 800, 19):
        for wanted in passes(function, item_bytes, head_dim):
            for found in layouts(wanted, device):
                most = {"local": 1, "cluster": device.cluster_ctas}.get(found.exchange, device.multiprocessors)
                assert found.ctas <= most and found.ctas % found.cluster == 0 and found.cluster <= device.cluster_ctas
                assert found.shared_bytes <= device.shared_bytes
                assert found.threads <= 1024 and found.threads % 32 == 0
                assert head_dim <= found.D
                rounded_up = found.D - head_dim
                assert found.exchange == "clusters" or rounded_up < 8 * found.blocks * found.ctas
                assert found.D % (8 * found.blocks * found.ctas) == 0
                assert found.kept >= 0 and found.stages >= 3
            chosen = plan(wanted, device)
            if isinstance(chosen, str):
                assert f"head_dim {head_dim}" in chosen
                assert function in chosen
                assert device.name in chosen
                assert "backend='cuda'" in chosen


@pytest.mark.parametrize("head_dim", [64, 128, 256, 512])
def test_batches_that_the_device_takes_at_once_have_one_plan(head_dim: int) -> None:
    """No batch size builds another kernel, before there are more tiles than the device has room for."""
    room = {64: 132, 128: 30, 256: 15, 512: 7}[head_dim]
    found = {plan(passes("lstm", 2, head_dim, 1, 8 * tiles)[0], BY_NAME["H200"]) for tiles in range(1, room + 1)}
    assert len(found) == 1
    assert found == {plan(passes("lstm", 2, head_dim - 2, 1, 1)[0], BY_NAME["H200"])}
