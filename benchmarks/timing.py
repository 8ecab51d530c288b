"""How long a call takes and how much memory it needs."""

from __future__ import annotations

import statistics
import time
from typing import Callable, Optional

import torch

WARM_UP, DURATION = 30, 200  # on a GPU, in ms
REPEATS = 9  # on a CPU


def median_ms(call: Callable[[], object], device: torch.device) -> float:
    """Median time of a call in ms, after warming up."""
    if device.type == "cuda":
        from triton.testing import do_bench  # type: ignore[import-not-found, import-untyped, unused-ignore]

        return float(do_bench(call, warmup=WARM_UP, rep=DURATION, return_mode="median"))
    call()
    return statistics.median(_elapsed_ms(call) for _ in range(REPEATS))


def _elapsed_ms(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def peak_mb(call: Callable[[], object], device: torch.device) -> Optional[float]:
    """The most memory allocated during a call beyond what was before it, in MB of 10^6 bytes; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 1e6
