"""`python -m flashrnn`: what works here, what does not, and why. `--json` for programs."""

from __future__ import annotations

import argparse
import json

from .report import render, report


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m flashrnn", description="Versions, devices, and every backend with its state."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    data = report()
    print(json.dumps(data, indent=2) if arguments.json else render(data))


if __name__ == "__main__":
    main()
