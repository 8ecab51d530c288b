"""What works here and what does not, and why: for a machine (`python -m flashrnn`) and for given shapes (`explain`)."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional, Union

import torch

from .checks import check_size
from .config import FlashRNNConfig, merge_config
from .discovery import AUTO, Candidate, candidates, find, name_of, not_installed, reasons_why_not
from .dtypes import parse_dtype
from .errors import BackendUnavailable, ConfigError, describe
from .problem import Problem

if sys.version_info >= (3, 10):
    from importlib.metadata import distributions
else:
    from importlib_metadata import distributions


@dataclass(frozen=True)
class Explanation:
    """Which backend a call takes, and why each other one does not.

    Attributes:
        backend: the backend that runs, or None if the call would raise; on a device that is not here, the one that would.
        reasons: for every backend, why it does not solve the problem; None where it does.
        plans: for every backend that does, how it would, as far as it says.
        problem: the shapes and options asked about.
        device_is_here: whether this machine has the device. Without it no call can run, and those backends that have to ask
            the device say that in `reasons`.
    """

    backend: Optional[str]
    reasons: dict[str, Optional[str]]
    plans: dict[str, str]
    problem: Problem
    device_is_here: bool = True

    def __str__(self) -> str:
        problem, config = self.problem, self.problem.config
        place = str(problem.device) if self.device_is_here else f"{problem.device}, which this machine does not have"
        head = (
            f"{config.function}, B {problem.batch_size}, T {problem.sequence_size}, {problem.num_heads} x "
            f"{problem.head_dim}, {str(config.dtype).replace('torch.', '')} on {place}: "
            f"backend {config.backend!r} takes {(self.device_is_here and self.backend) or 'nothing'}"
        )
        rows = [(name, reason or self._how(name)) for name, reason in self.reasons.items()]
        return head + "\n" + table(rows)

    def _how(self, name: str) -> str:
        plan = self.plans.get(name)
        verdict = "taken" if name == self.backend else "would work too"
        return (verdict if self.device_is_here else "would work there") + (f": {plan}" if plan else "")


def explain(
    batch_size: int,
    sequence_size: int,
    num_heads: int,
    head_dim: int,
    function: str = "lstm",
    config: Optional[FlashRNNConfig] = None,
    backend: str = AUTO,
    dtype: Union[str, torch.dtype, None] = None,
    *,
    device: Union[str, torch.device, None] = None,
    requires_grad: bool = True,
    lengths: bool = False,
    resets: bool = False,
) -> Explanation:
    """Say which backend `flashrnn()` would take for these shapes, and why each other one would not do.

    Args:
        batch_size, sequence_size, num_heads, head_dim: B and T from 0 up, NH and D from 1 up.
        function, config, backend, dtype: as for `flashrnn()`; dtype None means float32 here.
        device: where the tensors would lie; None: the GPU if there is one, else the CPU. One that this machine does not have
            can be asked about, see `Explanation.device_is_here`.
        requires_grad: whether gradients are wanted.
        lengths, resets: whether those arguments would be given.

    Returns:
        An Explanation; print it for a table. Unlike `flashrnn()` it does not raise for a backend that cannot run.

    Raises:
        ConfigError: an argument has a value that it cannot have.
    """
    config = merge_config(config, function, backend, dtype)
    settled = parse_dtype(config.dtype) or torch.float32
    problem = Problem(
        config=config.settle(config.function, config.backend, settled),
        batch_size=check_size("batch_size", batch_size, 0),
        sequence_size=check_size("sequence_size", sequence_size, 0),
        num_heads=check_size("num_heads", num_heads, 1),
        head_dim=check_size("head_dim", head_dim, 1),
        device=_parse_device(device),
        states_dtype=settled,
        requires_grad=requires_grad,
        has_lengths=lengths,
        has_resets=resets,
    )
    reasons = reasons_why_not(problem)
    usable = [name for name, reason in reasons.items() if reason is None]
    if config.backend != AUTO:
        try:
            name = find(config.backend).name
        except BackendUnavailable as error:
            name, reasons[config.backend] = config.backend, str(error)
        usable = [name] if name in usable else []
    plans = {found.name: found.how(problem) for found in candidates() if reasons.get(found.name, "unknown") is None}
    reasons.update(not_installed())
    return Explanation(usable[0] if usable else None, reasons, plans, problem, _is_here(problem.device))


def _parse_device(device: Union[str, torch.device, None]) -> torch.device:
    """The device of that name; None is the GPU if there is one, else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ConfigError(describe("device", "a device by its name in torch, 'cpu' or 'cuda:0'", repr(device))) from error


def _is_here(device: torch.device) -> bool:
    """Whether this machine has the device, as far as torch counts devices of that type."""
    count = getattr(getattr(torch, device.type, None), "device_count", None)
    return device.type == "cpu" or count is None or (device.index or 0) < count()


def report() -> dict[str, Any]:
    """The state of this installation, as plain data: versions, devices, backends, warnings."""
    probe = explain(16, 1024, 12, 64, dtype="bfloat16")
    return {
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **_installed()},
        "platform": platform.platform(),
        "devices": _devices(),
        "backends": [_describe(candidate, probe.problem) for candidate in candidates()]
        + [
            {"name": name, "aliases": [], "distribution": None, "state": "missing", "reason": reason}
            for name, reason in not_installed().items()
        ],
        "probe": str(probe).partition("\n")[0],
        "warnings": _warnings(),
    }


def render(data: dict[str, Any]) -> str:
    """The report as text."""
    rows = [(x["name"], x["state"], x["reason"] or x["distribution"]) for x in data["backends"]]
    lines = [
        ", ".join(f"{name} {version}" for name, version in data["versions"].items()),
        f"platform: {data['platform']}",
        "devices: " + "; ".join(data["devices"]),
        "",
        table([("backend", "state", "why, or from where"), *rows]),
        "",
        data["probe"],
        *(f"warning: {text}" for text in data["warnings"]),
    ]
    return "\n".join(lines)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text with their columns aligned."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([cell.ljust(width) for cell, width in zip(row, widths)] + [row[-1]]).rstrip() for row in rows)


def _describe(candidate: Candidate, probe: Problem) -> dict[str, Any]:
    reason = candidate.why_not(probe)
    state = "broken" if candidate.backend is None else "unavailable" if reason else "ready"
    aliases = list(candidate.backend.aliases) if candidate.backend else []
    return {
        "name": candidate.name,
        "aliases": aliases,
        "distribution": candidate.distribution,
        "state": state,
        "reason": reason,
    }


def _installed() -> dict[str, str]:
    """Version by normalised name of every distribution of interest."""
    names = {"flashrnn", "flashrnn-core", "flashrnn-cuda", "flashrnn-triton", "flashrnn-testing", "triton", "cuda-core"}
    found: dict[str, str] = {}
    for dist in distributions():
        name = (name_of(dist) or "").lower().replace("_", "-")
        if name in names:
            found.setdefault(name, dist.version)
    return dict(sorted(found.items()))


def _devices() -> list[str]:
    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} {properties.name}, compute capability {properties.major}.{properties.minor}")
    return devices


def _warnings() -> list[str]:
    found = []
    installed = _installed()
    if "flashrnn" in installed:
        found.append(
            f"the distribution flashrnn {installed['flashrnn']} is installed beside flashrnn-core and owns the same import "
            "name. Run: pip uninstall flashrnn flashrnn-core; then install flashrnn-core again"
        )
    if torch.version.cuda is None and torch.version.hip is None and os.path.exists("/proc/driver/nvidia/version"):
        found.append(f"this machine has an NVIDIA driver, but torch {torch.__version__} is a build without CUDA")
    return found
