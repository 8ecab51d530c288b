"""Backends offered as other distributions offer them: fakes for the tests of discovery."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

from flashrnn import BackendUnavailable, discovery, flashrnn
from flashrnn.backend import Backend
from flashrnn.problem import Problem
from flashrnn.vanilla_fwbw import VANILLA_FWBW


class FakeKernel(Backend):
    """Computes as vanilla_fwbw does, counts its forward passes, and refuses what it is told to refuse."""

    def __init__(self, name: str, priority: int = 10, aliases: tuple[str, ...] = (), refuses: Any = (), version: Any = 1):
        self.name, self.priority, self.aliases, self.interface_version = name, priority, aliases, version
        self.refuses, self.runs = refuses, 0

    def why_not(self, problem: Problem) -> Optional[str]:
        if isinstance(self.refuses, BaseException):
            raise self.refuses
        for value in (problem.dtype, problem.device.type, problem.config.function):
            if value in self.refuses:
                return f"{self.name} has no {value}, found {value}; vanilla_fwbw has it."
        return None

    def forward(self, *args: Any) -> None:
        self.runs += 1
        VANILLA_FWBW.forward(*args)

    def backward(self, *args: Any) -> None:
        VANILLA_FWBW.backward(*args)


class PlugIns:
    """What is installed beside core: nothing at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.entries, self.searches = monkeypatch, [], 0

    def entry_points(self, group: str) -> list[SimpleNamespace]:
        assert group == "flashrnn.backends"
        self.searches += 1
        return self.entries

    def promise(self, name: str, value: str, distribution: str = "someones-kernels", version: str = "3.2") -> None:
        """An entry point, whatever stands behind it."""
        dist = SimpleNamespace(metadata={"Name": distribution}, version=version)
        self.entries.append(SimpleNamespace(name=name, value=value, group="flashrnn.backends", dist=dist))
        forget()

    def offer(self, name: str, backend: Any, distribution: str = "someones-kernels") -> Any:
        """An entry point with this object behind it; the object."""
        module = ModuleType(f"plug_in_{len(self.entries)}")
        module.BACKEND = backend
        self.monkeypatch.setitem(sys.modules, module.__name__, module)
        self.promise(name, f"{module.__name__}:BACKEND", distribution)
        return backend


def forget() -> None:
    discovery.candidates.cache_clear()
    discovery.choose.cache_clear()
    discovery._warned.clear()


def small_call(backend: str = "auto", dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """A small elman network."""
    return flashrnn(
        torch.ones(2, 3, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2), None, "elman", backend=backend, dtype=dtype
    )


def refusal(backend: str) -> str:
    """The message with which a call of this backend is refused."""
    with pytest.raises(BackendUnavailable) as caught:
        small_call(backend)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def names() -> list[str]:
    return [candidate.name for candidate in discovery.candidates()]
