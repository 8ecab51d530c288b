"""The kernels themselves, emulated on a CPU: right whatever the order in which their threads run."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor

from emulator import COMPILER, Edits, EmulatedFunction, EmulatorError, emulated
from flashrnn import FlashRNNConfig, flashrnn
from flashrnn.cells import CELLS, get_cell
from flashrnn_cuda.fused import forced
from flashrnn_cuda.plan import Layout, Pass, plan
from flashrnn_cuda.selection import DEVICES
from flashrnn_testing import create_inputs, model_test
from flashrnn_testing.inputs import random_masks

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++ on this machine")

BY_NAME = {device.name: device for device in DEVICES}
EXCHANGES = ("local", "cluster", "grid", "clusters", "mailed")
KINDS = (*EXCHANGES, "cuda")
OPTIONS = {"forward_clipval": 1.0, "gradient_recurrent_clipval": 0.5}


def check(
    kind: str,
    function: str,
    B: int,
    T: int,
    NH: int,
    D: int,
    dtype: torch.dtype = torch.bfloat16,
    *,
    device: str = "H200",
    seed: int = 0,
    edits: Edits = (),
    masked: bool = False,
    include_backward: bool = True,
    recompute: bool = False,
    **layout: int,
) -> None:
    """Every state, and gradient, against vanilla_fwbw. `masked`: with lengths, resets and all that clips."""
    masks = dict(zip(("lengths", "resets"), random_masks(B, T))) if masked else {}
    with emulated(BY_NAME[device], seed, edits), nullcontext() if kind == "cuda" else forced(exchange=kind, **layout):
        assert model_test(
            *(B, T, NH, D, function, "cuda" if kind == "cuda" else "cuda_fused", "vanilla_fwbw"),
            device="cpu",
            dtype=dtype,
            include_backward=include_backward,
            recompute=recompute,
            **masks,
            **(OPTIONS if masked else {}),
        )


@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_function_and_exchange(kind: str, function: str) -> None:
    check(kind, function, 9, 3, 2, 64)


@pytest.mark.parametrize("function", CELLS)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_clipping_and_recompute(kind: str, function: str) -> None:
    check(kind, function, 11, 5, 2, 40, masked=True, recompute=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kind", KINDS)
def test_other_dtypes(kind: str, dtype: torch.dtype) -> None:
    check(kind, "gru", 9, 3, 2, 33, dtype)


@pytest.mark.parametrize("head_dim", [3, 16, 96, 200])
@pytest.mark.parametrize("kind", KINDS)
def test_head_dims(kind: str, head_dim: int) -> None:
    if kind == "local" and head_dim > 128:
        pytest.skip("more than one SM holds")
    check(kind, "lstm", 3, 3, 1, head_dim)


@pytest.mark.parametrize("batch_size", [1, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_sizes(kind: str, batch_size: int) -> None:
    check(kind, "slstm", batch_size, 2, 3, 24)


@pytest.mark.parametrize("kind", KINDS)
def test_more_steps_than_places_in_a_ring(kind: str) -> None:
    check(kind, "elman", 3, 70, 1, 64)


@pytest.mark.parametrize("columns", [1, 2, 4])
@pytest.mark.parametrize("cluster", [2, 4, 8, 16])
def test_clusters_of_every_size(cluster: int, columns: int) -> None:
    check("clusters", "lstm", 37, 4, 1, 200, cluster=cluster, columns=columns)


@pytest.mark.parametrize("function", CELLS)
def test_mail_for_more_rows_forward(function: str) -> None:
    check("mailed", function, 37, 4, 1, 200, columns=2, include_backward=False)


@pytest.mark.parametrize(("kind", "head_dim"), [("local", 64), ("grid", 96), ("mailed", 96), ("cuda", 40)])
def test_on_a_gpu_without_clusters(kind: str, head_dim: int) -> None:
    check(kind, "lstm", 9, 3, 2, head_dim, device="A100")


def test_helpers_keep_what_leaders_do_not() -> None:
    """Of a large head: more steps of R stay in the registers of those who help than of those who lead."""
    layout = plan(Pass("backward", get_cell("slstm"), 2, 1024, 1, 3, False), BY_NAME["H200"], exchange="clusters")
    assert isinstance(layout, Layout) and layout.helpers_kept > layout.kept
    check("clusters", "slstm", 3, 2, 1, 1024)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_the_bit_under_any_schedule(kind: str) -> None:
    def run(seed: int) -> list[Tensor]:
        Wx, states, R, b = create_inputs(9, 6, 2, 64, "lstm", True, torch.bfloat16, "cpu")
        config = FlashRNNConfig(function="lstm", backend="cuda" if kind == "cuda" else "cuda_fused")
        with emulated(BY_NAME["H200"], seed), nullcontext() if kind == "cuda" else forced(exchange=kind):
            out, last = flashrnn(Wx, R, b, states, config=config)
            return [out, last, *torch.autograd.grad(out.sum() + last.sum(), (Wx, R, b, states))]

    first = run(0)
    for seed in range(1, 5):
        assert all(torch.equal(x, y) for x, y in zip(first, run(seed)))


def test_a_gpu_without_room_for_the_clusters_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which a cooperative launch would not get: the way back goes without them."""
    resident = EmulatedFunction.resident

    def resident_without_clusters(self: EmulatedFunction, threads: int) -> int:
        return resident(self, threads) if self.cluster == 1 else 0

    monkeypatch.setattr(EmulatedFunction, "resident", resident_without_clusters)
    check("clusters", "lstm", 3, 3, 1, 96)


BROKEN = {
    "a leader adds up before all have made": (
        "mailed",
        ("fused/product.cuh", 'asm volatile("bar.sync %0, %1;" ::"n"(MADE), "n"(THREADS) : "memory");', "__syncwarp();"),
    ),
    "mail is taken before it is there": (
        "grid",
        ("exchange/mailbox.cuh", "return piece.words[0] != EMPTY && ", "return true || piece.words[0] != EMPTY && "),
    ),
    "mail is not cleared": (
        "grid",
        ("exchange/mailbox.cuh", "if (i >= back)", "if (false)"),
    ),
    "nobody waits for what the cluster sends": (
        "cluster",
        ("exchange/cluster.cuh", '"@!done bra again;\\n"', '"\\n"'),
    ),
    "a team does not meet": (
        "grid",
        (
            "fused/parts.cuh",
            'asm volatile("bar.sync %0, %1;" ::"r"(1 + index), "n"(32 * SPLIT) : "memory");',
            "__syncwarp();",
        ),
    ),
    "warps do not meet between steps": (
        "local",
        ("exchange/local.cuh", "__syncthreads();\n    meanwhile();", "meanwhile();"),
    ),
    "copies are not waited for": (
        "local",
        ("fused/forward.cuh", "      wait_for_copies<PENDING>();\n    });", "    });"),
    ),
}
"""What a kernel may not lack: the exchange that shows it, and the edit."""


@pytest.mark.parametrize("fault", BROKEN)
def test_what_is_broken_is_found(fault: str) -> None:
    kind, edit = BROKEN[fault]

    def under_some_schedules() -> None:
        for seed in range(8):
            check(kind, "lstm", 9, 40, 1, 96, seed=seed, edits=(edit,))

    with pytest.raises((AssertionError, EmulatorError)):
        under_some_schedules()
