"""Hold the plan's model of cuda_fused against a result file.

    python -m benchmarks.expected benchmarks/results/FILE.csv

The GPU need not be there: its facts are looked up by the name in the file. Expected are the loops over time alone, so that
what else a call does, the gradients of R and b and the host's work, is on the side of what was measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from flashrnn.cells import get_cell
from flashrnn.dtypes import DTYPES
from flashrnn.report import table
from flashrnn_cuda.device import Device
from flashrnn_cuda.plan import Pass, plan, waves
from flashrnn_cuda.selection import DEVICES

from .results import number, read
from .shapes import Case

CONTENDER = "cuda_fused"
PASSES = {"fw_ms": ("forward",), "fwbw_ms": ("forward", "backward")}
MARGIN = 0.3


class Expectation(NamedTuple):
    """What was expected of one time and what was measured, in ms."""

    case: Case
    quantity: str
    expected: float
    measured: float

    @property
    def ratio(self) -> float:
        """How many times as long as measured was expected."""
        return self.expected / self.measured


def expected_ms(case: Case, directions: Sequence[str], device: Device) -> Optional[float]:
    """The time of these passes over all steps by the plan's model; None where one does not fit the device."""
    total = 0.0
    for direction in directions:
        wanted = Pass(
            direction, get_cell(case.function), DTYPES[case.dtype].itemsize, case.D, case.NH, case.B, has_options=False
        )
        layout = plan(wanted, device)
        if isinstance(layout, str):
            return None
        total += waves(layout, wanted, device) * layout.step_ns * case.T / 1e6
    return total


def expectations(path: Path, device: Device) -> Iterator[Expectation]:
    """Both times of every row of cuda_fused, where there is one and the model has one."""
    for row in read(path).rows:
        for quantity, directions in PASSES.items():
            measured = getattr(row, quantity)
            if row.what != CONTENDER or measured is None:
                continue
            expected = expected_ms(row.case, directions, device)
            if expected is not None:
                yield Expectation(row.case, quantity, expected, measured)


def device_of(path: Path) -> Device:
    """The GPU that a file was measured on.

    Raises:
        ValueError: the file names none whose facts are known.
    """
    name = read(path).header.get("device", "no device")
    known = [device for device in DEVICES if device.name in name]
    if not known:
        raise ValueError(f"{path} was measured on {name}, of which {', '.join(d.name for d in DEVICES)} say nothing.")
    return known[0]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Print a table, and how many are within the margin. The exit status is 1 if the file has nothing to hold it against."""
    description, usage = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        description=description, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path)
    path = parser.parse_args(argv).results
    try:
        found = list(expectations(path, device_of(path)))
    except (OSError, ValueError) as error:
        parser.error(str(error))
    lines = [(str(x.case), x.quantity, number(x.expected), number(x.measured), f"{x.ratio:5.2f}") for x in found]
    print(table([("case", "", " expected", " measured", "ratio"), *lines]))
    good = sum(abs(x.ratio - 1) <= MARGIN for x in found)
    print(f"{good} of {len(found)} are expected within {MARGIN:.0%} of what was measured.")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
