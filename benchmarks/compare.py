"""Compare two result files.

    python -m benchmarks.compare OLD.csv NEW.csv

The exit status is 1 if anything became slower than the threshold allows, or fails now, or if the files share no rows.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Optional

from flashrnn.report import table

from .results import Results, Row, number, read
from .shapes import Case

THRESHOLD = 1.1


class Change(NamedTuple):
    """One time in both files, in ms; new is None if the contender fails now."""

    case: Case
    what: str
    quantity: str
    old: float
    new: Optional[float]

    @property
    def ratio(self) -> float:
        """How many times as long it takes; infinite if it fails."""
        return math.inf if self.new is None else self.new / self.old


def changes(old: Sequence[Row], new: Sequence[Row]) -> list[Change]:
    """Both times of every row that the files share, where there was one."""
    before = {row[:7]: row for row in old}
    return [
        Change(row.case, row.what, quantity, was, getattr(row, quantity))
        for row in new
        if row[:7] in before
        for quantity in ("fw_ms", "fwbw_ms")
        if (was := getattr(before[row[:7]], quantity)) is not None
    ]


def compare(old: Results, new: Results, threshold: float) -> int:
    """Print a table of old, new and ratio, and a verdict. Returns the exit status."""
    found = changes(old.rows, new.rows)
    print(f"old: {old.origin}, commit {old.header.get('commit')}\nnew: {new.origin}, commit {new.header.get('commit')}")
    if not found:
        print("The files share no rows.")
        return 1
    lines = []
    for x in found:
        verdict = " SLOWER" if x.ratio > threshold else ""
        lines.append((str(x.case), x.what, x.quantity, number(x.old), number(x.new), f"{x.ratio:5.2f}{verdict}"))
    print(table([("case", "what", "", "      old", "      new", "ratio"), *lines]))
    slower = sum(x.ratio > threshold for x in found)
    print(f"{slower} of {len(found)} times are more than {threshold:g} times the old ones.")
    return 1 if slower else 0


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Compare the files named."""
    description, usage = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        description=description, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="how many times as long is still good")
    options = parser.parse_args(argv)
    try:
        old, new = read(options.old), read(options.new)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    return compare(old, new, options.threshold)


if __name__ == "__main__":
    sys.exit(main())
