"""Kernels ahead of time: `python -m flashrnn_cuda build ...` compiles them, `python -m flashrnn_cuda clean` forgets them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from flashrnn.cells import CELLS
from flashrnn.dtypes import DTYPES
from flashrnn.errors import FlashRNNError

from .catalogue import TYPES
from .compile import build, cache
from .compile.architectures import architectures
from .device import devices_here
from .selection import devices_for, kernels_for, left_out

EXAMPLE = "example: python -m flashrnn_cuda build --function lstm gru --head-dim 64 128 --dtype bfloat16"


def main() -> int:
    """Run the command; returns the exit status."""
    options = parser().parse_args()
    try:
        return int(options.run(options))
    except (FlashRNNError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser("python -m flashrnn_cuda", description=__doc__, epilog=EXAMPLE)
    commands = found.add_subparsers(required=True, metavar="COMMAND")
    building = commands.add_parser("build", help="compile kernels ahead of time", epilog=EXAMPLE)
    dtypes = [name for name, dtype in DTYPES.items() if dtype in TYPES]
    building.add_argument("--function", nargs="+", choices=sorted(CELLS), default=sorted(CELLS), metavar="NAME")
    building.add_argument("--head-dim", nargs="+", type=positive, required=True, metavar="D")
    building.add_argument("--dtype", nargs="+", choices=dtypes, default=["bfloat16"], metavar="DTYPE")
    building.add_argument("--backend", nargs="+", choices=["cuda_fused", "cuda"], default=["cuda_fused", "cuda"])
    building.add_argument("--arch", help='instead of TORCH_CUDA_ARCH_LIST, e.g. "8.0;9.0a"', metavar="LIST")
    building.add_argument("--output", type=Path, help="a folder instead of the cache, to ship as flashrnn_cuda/prebuilt")
    building.set_defaults(run=run_build)
    cleaning = commands.add_parser("clean", help="empty the cache")
    cleaning.set_defaults(run=run_clean)
    return found


def positive(text: str) -> int:
    """A number from 1 on."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1 on, got {number}")
    return number


def run_build(options: argparse.Namespace) -> int:
    """Compile."""
    here = devices_here()
    targets = architectures(options.arch, [device.capability for device in here])
    what = (options.function, options.head_dim, [DTYPES[name] for name in options.dtype])
    devices = {target: devices_for(target, targets, here) for target in targets}
    jobs = {target: kernels_for(*what, options.backend, devices[target]) for target in targets}
    total = sum(map(len, jobs.values()))
    if "cuda_fused" in options.backend:
        for target in targets:
            for reason in left_out(*what, devices[target]):
                print(f"{target.name}: {reason}", file=sys.stderr)
    with progress_bar(total) as bar:
        compiled = 0
        for target, kernels in jobs.items():
            compiled += build(kernels, [target], options.output, lambda kernel: bar.update())
    where = options.output or cache.wanted_folder()
    if cache.fallback:
        raise OSError(f"{where} cannot be written: nothing was kept")
    print(f"{total} kernels for {', '.join(target.name for target in targets)} in {where}, {compiled} of them compiled now")
    return 0


def run_clean(options: argparse.Namespace) -> int:
    """Forget."""
    print(f"removed {cache.clean()} kernels from {cache.wanted_folder()}")
    return 0


def progress_bar(total: int) -> Any:
    """tqdm's, or one that shows nothing where tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return Silent()
    return tqdm(total=total, unit="kernel")


class Silent:
    """A progress bar that shows nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self) -> None:
        """Do nothing."""


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
