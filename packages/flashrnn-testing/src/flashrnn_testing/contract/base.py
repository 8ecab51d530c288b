"""What all parts of the contract share: the attributes a backend's suite sets, and how a case is run."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import pytest
import torch
from torch import Tensor

from flashrnn import FlashRNNConfig
from flashrnn.cells import CELLS, get_cell
from flashrnn.discovery import AUTO, find
from flashrnn.errors import BackendUnavailable, ConfigError, FlashRNNError, describe

from ..inputs import create_inputs, default_device
from ..results import compute

SWEEPS = {"functions": str, "dtypes": torch.dtype, "devices": str, "head_dims": int}
"""The attributes that tests are repeated for, and what they are tuples of."""


class Case(NamedTuple):
    """One set of inputs."""

    Wx: Tensor
    R: Tensor
    b: Tensor
    states: Optional[Tensor]


@pytest.mark.usefixtures("poison_empty")
class ContractBase:
    """The attributes that a backend's suite sets, and helpers.

    Attributes:
        backend: its name. The only one that has no default; without it, or with one that no package offers, pytest stops.
        functions: what it computes.
        dtypes: what it computes in.
        devices: where it runs; None: the GPU if there is one, else the CPU.
        head_dims: to sweep: tile sizes, one less and one more.
        reference: what is right.
        has_second_derivatives: whether a second backward pass gives numbers instead of an error that names vanilla.
        has_infinity_in_float32: whether products of float32 take an infinite factor for what it is.
    """

    backend: str
    functions: tuple[str, ...] = tuple(CELLS)
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float16, torch.bfloat16)
    devices: Optional[tuple[str, ...]] = None
    head_dims: tuple[int, ...] = (1, 3, 15, 16, 17, 31, 33, 64)
    reference: str = "vanilla"
    has_second_derivatives: bool = False
    has_infinity_in_float32: bool = True

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Fill the arguments `function`, `dtype`, `device` and `head_dim` of tests from the attributes."""
        check_attributes(type(self))
        devices = self.devices or (default_device().type,)
        values = {"function": self.functions, "dtype": self.dtypes, "device": devices, "head_dim": self.head_dims}
        for name, choices in values.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, choices, ids=lambda value: str(value).replace("torch.", ""))

    def skip_without_infinity(self, dtype: torch.dtype) -> None:
        """Skip the test where an infinite factor of a product gives NaN."""
        if dtype == torch.float32 and not self.has_infinity_in_float32:
            pytest.skip("float32 is the sum of smaller floats here, of which infinity is none")

    @staticmethod
    def case(
        function: str,
        device: str,
        dtype: torch.dtype = torch.float32,
        batch_size: int = 3,
        sequence_size: int = 5,
        num_heads: int = 2,
        head_dim: int = 16,
        create_states: bool = True,
        seed: int = 0,
    ) -> Case:
        """Random inputs."""
        Wx, *states, R, b = create_inputs(
            batch_size, sequence_size, num_heads, head_dim, function, create_states, dtype, device, seed
        )
        return Case(Wx, R, b, states[0] if states else None)

    def config(self, function: str, **options: Any) -> FlashRNNConfig:
        """Options that name this backend."""
        return FlashRNNConfig(function=function, backend=self.backend, **options)

    def reference_config(self, function: str, **options: Any) -> FlashRNNConfig:
        """The same options for the reference."""
        return FlashRNNConfig(function=function, backend=self.reference, **options)

    def run(self, function: str, case: Case, **keywords: Any) -> dict[str, Tensor]:
        """Every result and gradient of this backend by name."""
        return compute(self.config(function), *case, **keywords)


def check_attributes(suite: type[ContractBase]) -> None:
    """Stop pytest where it collects the suite, once and not in each of its tests, if an attribute makes no sense.

    A backend that is there counts, whether or not it runs on this machine: that its tests say.
    """
    try:
        for name in ("backend", "reference"):
            check_name(name, getattr(suite, name, None))
        for name, kind in SWEEPS.items():
            values = getattr(suite, name)
            is_sweep = isinstance(values, (tuple, list)) and values and all(isinstance(x, kind) for x in values)
            if not is_sweep and (name, values) != ("devices", None):
                raise ConfigError(describe(name, f"a tuple of one {kind.__name__} or more", repr(values)))
        for function in suite.functions:
            get_cell(function)
    except FlashRNNError as error:
        raise pytest.Collector.CollectError(f"{suite.__name__}: {error}") from error


def check_name(attribute: str, name: object) -> None:
    """A FlashRNNError unless it names a backend that could be imported."""
    if not isinstance(name, str) or name == AUTO:
        raise ConfigError(
            describe(attribute, "the name of a backend", repr(name), f'Write `{attribute} = "mine"` in the class.')
        )
    candidate = find(name)
    if candidate.error is not None:
        raise BackendUnavailable(candidate.error)
    if candidate.name != name:
        raise ConfigError(describe(attribute, f"{candidate.name!r}", f"its alias {name!r}"))
