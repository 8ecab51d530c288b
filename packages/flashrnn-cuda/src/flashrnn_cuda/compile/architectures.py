"""For which GPU architectures kernels are compiled: TORCH_CUDA_ARCH_LIST, or the device's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Optional

from flashrnn.errors import BackendUnavailable, ConfigError, describe

VARIABLE = "TORCH_CUDA_ARCH_LIST"
OLDEST = (8, 0)
NAMED = {
    "Kepler": "3.7",
    "Maxwell": "5.2",
    "Pascal": "6.1",
    "Volta": "7.0",
    "Turing": "7.5",
    "Ampere": "8.0;8.6+PTX",
    "Ada": "8.9+PTX",
    "Hopper": "9.0+PTX",
    "Blackwell": "10.0;10.3;12.0;12.1+PTX",
}
"""Names that PyTorch takes for entries. The old ones only have to be known, not to be complete."""

Capability = tuple[int, int]


@dataclass(frozen=True)
class Architecture:
    """An entry of the list.

    Attributes:
        capability: (major, minor).
        specific: "9.0a": code for exactly this architecture, with what later ones do not have.
        ptx: "9.0+PTX": newer devices are served too.
    """

    capability: Capability
    specific: bool = False
    ptx: bool = False

    @property
    def name(self) -> str:
        """As compilers want it: sm_80, sm_90a."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if self.specific else "")

    @property
    def entry(self) -> str:
        """As TORCH_CUDA_ARCH_LIST has it: 8.0, 9.0a."""
        major, minor = self.capability
        return f"{major}.{minor}" + ("a" if self.specific else "")

    def serves(self, device: Capability) -> bool:
        """Whether a cubin for it runs on the device: the same major version, not newer; a specific one on its own only."""
        if self.specific:
            return device == self.capability
        return device[0] == self.capability[0] and device[1] >= self.capability[1]


def native(device: Capability) -> Architecture:
    """The device's own architecture, with all it has."""
    return Architecture(device, specific=device >= (9, 0))


def parse(text: str, source: str = VARIABLE) -> list[Architecture]:
    """The entries of a list such as "8.0;8.6 9.0a" or "Hopper", but for those that are too old; `source`: where it stood.

    Raises:
        ConfigError: an entry is not an architecture.
        BackendUnavailable: none is new enough.
    """
    found = []
    for word in words(text):
        for entry in NAMED.get(word, word).split(";"):
            match = re.fullmatch(r"(\d+)\.(\d)(a?)(\+PTX)?", entry)
            if match is None:
                raise ConfigError(describe(source, 'a list such as "8.0;8.6;9.0a;12.0+PTX"', repr(word)))
            major, minor, suffix, ptx = match.groups()
            found.append(Architecture((int(major), int(minor)), suffix == "a", ptx is not None))
    usable = [entry for entry in found if entry.capability >= OLDEST]
    if not usable:
        todo = "Entries below 8.0 are ignored, since the kernels need what came with 8.0: add one, or unset it."
        raise BackendUnavailable(describe(source, "an architecture of 8.0 or newer", repr(text), todo))
    return usable


def words(text: str) -> list[str]:
    """What stands in a list, separated by semicolons, spaces or both."""
    return re.findall(r"[^;\s]+", text)


def listed(text: Optional[str] = None, source: str = VARIABLE) -> Optional[list[Architecture]]:
    """The entries of `text`, else of TORCH_CUDA_ARCH_LIST; None if it leaves the choice to us, empty or "native"."""
    text = os.environ.get(VARIABLE, "") if text is None else text
    return None if words(text) in ([], ["native"]) else parse(text, source)


def best(entries: Iterable[Architecture], device: Capability) -> Optional[Architecture]:
    """The entry whose cubins a device is given: the newest that it runs, a specific one first; None if it runs none."""
    serving = [entry for entry in entries if entry.serves(device)]
    return max(serving, key=lambda entry: (entry.capability, entry.specific), default=None)


def architecture_for(device: Capability) -> Architecture:
    """The architecture to compile for when a kernel is to run on a device of this compute capability.

    The source is always at hand, so where PTX of an older architecture would be translated for a newer device, the kernel is
    compiled for that device itself.

    Raises:
        BackendUnavailable: TORCH_CUDA_ARCH_LIST has none that the device runs.
        ConfigError: TORCH_CUDA_ARCH_LIST has an entry that is not an architecture.
    """
    entries = listed()
    if entries is None:
        return native(device)
    found = best(entries, device)
    if found is not None:
        return found
    if any(entry.ptx and not entry.specific and entry.capability <= device for entry in entries):
        return native(device)
    have = ".".join(map(str, device))
    raise BackendUnavailable(
        f"{VARIABLE} is {os.environ[VARIABLE]!r}, which has nothing for this GPU of compute capability {have}: "
        f"add {have} to it, or unset it to compile for the GPU that is there."
    )


def runnable(device: Capability) -> tuple[Architecture, ...]:
    """What was built ahead of time and may be run, best first: what the list says, else all that the device can run."""
    if listed() is not None:
        return (architecture_for(device),)
    major, minor = device
    return (native(device), *(Architecture((major, older)) for older in range(minor, -1, -1)))


def architectures(text: Optional[str], here: Sequence[Capability]) -> list[Architecture]:
    """What to compile ahead of time, each once.

    Args:
        text: the option --arch, which goes before TORCH_CUDA_ARCH_LIST. PTX is not shipped.
        here: of the GPUs of this machine, for which it is if neither says anything; on one without a GPU 8.0 and 9.0a.

    Raises:
        ConfigError: an entry is not an architecture.
        BackendUnavailable: none is new enough.
    """
    entries = listed(text, "--arch") if text else listed()
    if entries is None:
        usable = [native(device) for device in here if device >= OLDEST]
        entries = usable or [Architecture(OLDEST), Architecture((9, 0), specific=True)]
    return list(dict.fromkeys(Architecture(entry.capability, entry.specific) for entry in entries))
