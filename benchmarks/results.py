"""Result files: CSV with comment lines `# key: value` at the top that say where the numbers come from."""

from __future__ import annotations

import csv
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple, Optional

import torch

import flashrnn
from flashrnn.report import report, table

from .shapes import Case

FOLDER = Path(__file__).parent / "results"
MEANING = (
    "fw_ms: forward under no_grad; fwbw_ms: forward and the gradients of Wx, R, b (torch.nn: of x and its parameters); "
    "medians. peak_mb: memory of the latter beyond its inputs, 10^6 bytes. torch.nn: one head of size NH * D, "
    "input product included."
)


class Row(NamedTuple):
    """One line; its fields are the columns. An empty cell, which a contender left that failed, is None."""

    function: str
    NH: int
    D: int
    B: int
    T: int
    dtype: str
    what: str
    fw_ms: Optional[float] = None
    fwbw_ms: Optional[float] = None
    peak_mb: Optional[float] = None

    @property
    def case(self) -> Case:
        """What was timed."""
        return Case(*self[:6])


class Results(NamedTuple):
    """A file's comments by key, and its rows."""

    header: dict[str, str]
    rows: list[Row]

    @property
    def origin(self) -> str:
        """Device and date."""
        return f"{self.header.get('device', 'unknown device')}, {self.header.get('date', 'unknown date')}"


def describe(device: torch.device) -> dict[str, str]:
    """Everything a reader has to know about this machine and this code."""
    found = {"date": date.today().isoformat(), "device": "CPU", "commit": _answer("git", "describe", "--always", "--dirty")}
    if device.type == "cuda":
        found["device"] = torch.cuda.get_device_name(device)
        found["driver"] = _answer("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        found["cuda"] = str(torch.version.cuda)
        found["tf32"] = f"cuDNN {torch.backends.cudnn.allow_tf32}, products {torch.backends.cuda.matmul.allow_tf32}"
    return {**found, "flashrnn": flashrnn.__version__, **report()["versions"], "meaning": MEANING}


def _answer(*command: str) -> str:
    """The first line that a program prints, or "unknown"."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=FOLDER.parent)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.partition("\n")[0].strip() or "unknown"


def file_name(header: Mapping[str, str], name: str) -> str:
    """<device>-<date>[-name].csv."""
    slug = re.sub(r"[^a-z0-9]+", "-", header["device"].lower()).strip("-")
    return "-".join(filter(None, (slug, header["date"], name))) + ".csv"


def start(path: Path, header: Mapping[str, str]) -> None:
    """Begin a file. If it exists already, the program ends with a sentence that says so."""
    if path.exists():
        raise SystemExit(f"{path} exists already: choose another --name, or remove it.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", newline="") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in header.items())
        csv.writer(file, lineterminator="\n").writerow(Row._fields)


def append(path: Path, row: Row) -> None:
    """Write a row at once, so that a run that is stopped leaves what it found."""
    with path.open("a", newline="") as file:
        csv.writer(file, lineterminator="\n").writerow(row)


def read(path: Path) -> Results:
    """A file that `start` and `append` wrote.

    Raises:
        ValueError: it has other columns.
    """
    lines = path.read_text().splitlines()
    comments = [line[1:].partition(":") for line in lines if line.startswith("#")]
    reader = csv.DictReader(line for line in lines if not line.startswith("#"))
    if tuple(reader.fieldnames or ()) != Row._fields:
        raise ValueError(f"{path}: expected the columns {', '.join(Row._fields)}, got {reader.fieldnames}.")
    return Results({key.strip(): value.strip() for key, _, value in comments}, [_parse(cells) for cells in reader])


def _parse(cells: Mapping[str, str]) -> Row:
    function, NH, D, B, T, dtype, what, *measured = (cells[column] for column in Row._fields)
    return Row(function, int(NH), int(D), int(B), int(T), dtype, what, *(float(x) if x else None for x in measured))


def render(rows: Sequence[Row]) -> str:
    """Rows as text with aligned columns."""
    lines = [(str(row.case), row.what, *map(number, row[7:])) for row in rows]
    return table([("case", "what", "    fw ms", "  fwbw ms", "  peak MB"), *lines])


def number(value: Optional[float]) -> str:
    """A measurement, right-aligned; a dash for none."""
    return f"{'-' if value is None else format(value, '.3f'):>9}"
