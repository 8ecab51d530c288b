"""Which backends there are, and which one solves a problem."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Optional

from .backend import INTERFACE_VERSION, Backend
from .errors import BackendUnavailable, describe
from .problem import Problem

if sys.version_info >= (3, 10):
    from importlib.metadata import Distribution, EntryPoint, entry_points
else:
    from importlib_metadata import Distribution, EntryPoint, entry_points

GROUP = "flashrnn.backends"
AUTO = "auto"

BUILT_IN = {"vanilla": "flashrnn.vanilla:VANILLA", "vanilla_fwbw": "flashrnn.vanilla_fwbw:VANILLA_FWBW"}

OFFERED_BY = {
    "cuda_fused": "flashrnn-cuda",
    "cuda": "flashrnn-cuda",
    "triton_fused": "flashrnn-triton",
}
"""Backends of this project's other packages, to tell a user which one to install."""

OFFERED_ALIASES = {"triton": "triton_fused"}


@dataclass(frozen=True)
class Candidate:
    """A backend that an entry point promises: loaded, or with the reason why it could not be.

    Attributes:
        name: the name of the entry point.
        distribution: the package that brings it, with its version.
        backend: the backend; None if it is broken.
        error: one sentence that says what is wrong with it; None if nothing is.
    """

    name: str
    distribution: str
    backend: Optional[Backend] = None
    error: Optional[str] = None

    def why_not(self, problem: Problem) -> Optional[str]:
        """None if this candidate solves the problem, else the reason in one sentence."""
        if self.backend is None:
            return self.error
        try:
            reason = self.backend.why_not(problem)
        except (Exception, SystemExit) as error:
            return f"{self.name} ({self.distribution}) is broken: its why_not raised {_spell_error(error)}."
        if reason is None or (isinstance(reason, str) and reason):
            return reason
        return f"{self.name} ({self.distribution}) is broken: its why_not answered {reason!r}, neither None nor a sentence."

    def how(self, problem: Problem) -> str:
        """How this candidate would solve a problem that it solves, as far as it says."""
        try:
            return "" if self.backend is None else str(self.backend.how(problem))
        except Exception as error:
            return f"its how raised {_spell_error(error)}"


@cache
def candidates() -> tuple[Candidate, ...]:
    """All backends, in the order in which `auto` tries them; broken ones last. Found once in a process."""
    found: dict[str, dict[str, list[str]]] = {}
    promised = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for entry in (*promised.values(), *entry_points(group=GROUP)):
        found.setdefault(entry.name, {}).setdefault(entry.value, []).append(_distribution(entry))
    loaded = [_candidate(name, values) for name, values in found.items()]
    loaded.sort(key=lambda candidate: (-_priority(candidate), candidate.name))
    return tuple(loaded)


def _candidate(name: str, values: dict[str, list[str]]) -> Candidate:
    """The candidate of one name; the same value from several distributions (or one found twice) counts once."""
    if len(values) > 1:
        both = " and ".join(f"{owners[0]} ({value})" for value, owners in values.items())
        return Candidate(name, both, error=f"The name {name} is claimed by {both}; uninstall one of them.")
    (value, owners), *_ = values.items()
    try:
        backend = EntryPoint(name, value, GROUP).load()
        error = _misfit(name, backend)
    except (Exception, SystemExit) as failure:
        backend, error = None, f"importing {value} raised {_spell_error(failure)}"
    if error is not None:
        return Candidate(name, owners[0], error=f"{name} ({owners[0]}) is broken: {error}.")
    return Candidate(name, owners[0], backend)


def _misfit(name: str, backend: Any) -> Optional[str]:
    """What keeps a loaded object from being this core's backend of that name."""
    version = getattr(backend, "interface_version", None)
    if version != INTERFACE_VERSION:
        return (
            f"it was built for interface version {version}, this flashrnn-core has {INTERFACE_VERSION}; "
            "upgrade the older of the two"
        )
    if not isinstance(backend, Backend):
        return f"its entry point gives a {type(backend).__name__}, not an instance of flashrnn.backend.Backend"
    if backend.name != name:
        return f"its entry point is called {name!r} but the backend calls itself {backend.name!r}"
    if not name or name == AUTO:
        return f"{name!r} is no name for a backend"
    if isinstance(backend.priority, bool) or not isinstance(backend.priority, (int, float)):
        return f"its priority has to be a number, it is {backend.priority!r}"
    if not isinstance(backend.aliases, tuple) or not all(isinstance(alias, str) for alias in backend.aliases):
        return f"its aliases have to be a tuple of strings, they are {backend.aliases!r}"
    return None


def _priority(candidate: Candidate) -> float:
    return float("-inf") if candidate.backend is None else candidate.backend.priority


def _distribution(entry: EntryPoint) -> str:
    dist = getattr(entry, "dist", None)
    if dist is None:
        return "flashrnn-core"
    name = name_of(dist)
    return "a distribution without metadata" if name is None else f"{name} {dist.version}"


def name_of(dist: Distribution) -> Optional[str]:
    """A distribution's name; None where an interrupted installation left no metadata."""
    metadata = dist.metadata
    return metadata["Name"] if metadata else None


def _spell_error(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip() or 'no message'}".rstrip(".")


def find(name: str) -> Candidate:
    """The candidate of that name or alias.

    Raises:
        BackendUnavailable: unknown (listing the known), not installed (with the package to install), or claimed twice.
    """
    everyone = candidates()
    owners = [c for c in everyone if c.name == name]
    owners = owners or [c for c in everyone if c.backend is not None and name in c.backend.aliases]
    owners = owners or [c for c in everyone if c.name == OFFERED_ALIASES.get(name)]  # broken: its aliases are not known
    if len(owners) == 1:
        return owners[0]
    if owners:
        both = " and ".join(f"{c.name} ({c.distribution})" for c in owners)
        raise BackendUnavailable(f"The name {name} is an alias of both {both}; use one of those names.")
    offered = OFFERED_BY.get(OFFERED_ALIASES.get(name, name))
    if offered is not None:
        raise BackendUnavailable(f"backend {name!r} is not installed: install {offered}.")
    known = [AUTO]
    for candidate in everyone:
        known += [candidate.name, *(candidate.backend.aliases if candidate.backend else ())]
    raise BackendUnavailable(describe("backend", f"one of {', '.join(known)}", repr(name), _more_to_install()))


@lru_cache(maxsize=1024)
def choose(problem: Problem) -> Backend:
    """The backend that solves the problem: the one named, or for "auto" the first usable one.

    Raises:
        BackendUnavailable: with the reason. A named backend never becomes another one.
    """
    name = problem.config.backend
    if name != AUTO:
        candidate = find(name)
        reason = candidate.why_not(problem)
        if candidate.backend is None or reason is not None:
            raise BackendUnavailable(reason)
        return candidate.backend
    reasons = reasons_why_not(problem)
    for candidate in candidates():
        if candidate.backend is not None and reasons[candidate.name] is None:
            if candidate.backend.is_reference and problem.device.type == "cuda":
                _warn_slow(candidate.name, filter(None, reasons.values()))
            return candidate.backend
    raise BackendUnavailable("No backend solves this problem. " + " ".join(filter(None, reasons.values())))


def reasons_why_not(problem: Problem) -> dict[str, Optional[str]]:
    """For every candidate, in the order of `auto`, why it does not solve the problem; None where it does."""
    return {candidate.name: candidate.why_not(problem) for candidate in candidates()}


def not_installed() -> dict[str, str]:
    """Backends of this project's other packages that are missing here, with the package to install."""
    names = {candidate.name for candidate in candidates()}
    return {name: f"not installed: install {package}" for name, package in OFFERED_BY.items() if name not in names}


def _more_to_install() -> str:
    """In a sentence what `not_installed` lists, with aliases; empty if there is nothing."""
    found: dict[str, list[str]] = {}
    for name in not_installed():
        aliases = [alias for alias, of in OFFERED_ALIASES.items() if of == name]
        found.setdefault(OFFERED_BY[name], []).extend([name, *aliases])
    more = " and ".join(f"{', '.join(names)} (install {package})" for package, names in found.items())
    return f"There are also {more}." if more else ""


def _warn_slow(name: str, reasons: Iterable[str]) -> None:
    """Once in a process for each backend."""
    if name in _warned:
        return
    _warned.add(name)
    missing = [f"{backend} is {what}." for backend, what in not_installed().items()]
    warnings.warn(
        f"flashrnn runs GPU tensors on the slow reference backend {name!r}. " + " ".join((*reasons, *missing)),
        stacklevel=2,
    )


_warned: set[str] = set()
