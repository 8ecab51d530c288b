"""Use the installed packages as a user does: `python -I .ci/check_wheels.py core testing` checks flashrnn-core and -testing.

Run by `nox -s build`, with the interpreter of an environment that holds these packages of the project and no other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import flashrnn
from flashrnn.discovery import OFFERED_ALIASES, OFFERED_BY

SOURCE = Path(__file__).resolve().parent.parent / "packages"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # as in the report
B, T, NH, D = 4, 8, 3, 16
NS = {"lstm": 2, "gru": 1, "elman": 1, "slstm": 4}
NG = {"lstm": (4, 4, 4), "gru": (3, 3, 4), "elman": (1, 1, 1), "slstm": (4, 4, 4)}
"""Gates of Wx, R and b."""


def check_what_is_installed(packages: set[str]) -> None:
    """These packages, from wheels, and none of the others."""
    found = {dist.metadata["Name"] for dist in distributions() if dist.metadata["Name"].startswith("flashrnn")}
    assert found == packages, f"installed: {found}"
    for package in packages:
        module = "flashrnn" if package == "flashrnn-core" else package.replace("-", "_")
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        assert SOURCE not in Path(spec.origin).parents, f"{module} comes from the source tree"
        assert Path(spec.origin).with_name("py.typed").exists(), f"{module} brings no py.typed"


def check_kernels() -> None:
    """The wheel brings the text of the kernels."""
    spec = find_spec("flashrnn_cuda")
    assert spec is not None and spec.origin is not None
    found = {path.parent.name for path in Path(spec.origin).parent.glob("kernels/*/*.cuh")}
    assert {"alternating", "cells", "common", "exchange", "fused", "gradient", "pointwise"} <= found, found


def check_report(packages: set[str]) -> dict[str, str]:
    """`python -m flashrnn` knows the backends of these packages, none is broken; returns the state of each by name."""
    data = json.loads(output("-m", "flashrnn", "--json"))
    assert packages <= set(data["versions"]), data["versions"]
    states = {entry["name"]: entry["state"] for entry in data["backends"]}
    assert states["vanilla"] == states["vanilla_fwbw"] == "ready", states
    assert "broken" not in states.values(), data["backends"]
    for backend, package in OFFERED_BY.items():
        assert (states[backend] == "missing") == (package not in packages), (backend, states)
    print(output("-m", "flashrnn"))
    return states


def check_missing_backends(packages: set[str]) -> None:
    """A backend that is not installed says how to install it."""
    offered = {**OFFERED_BY, **{alias: OFFERED_BY[name] for alias, name in OFFERED_ALIASES.items()}}
    for backend, package in offered.items():
        if package not in packages:
            error = error_of(lambda name=backend: call("lstm", name), flashrnn.BackendUnavailable)
            assert f"install {package}" in error, error


def check_functions(backends: list[str]) -> None:
    """Every function with every backend, forward and backward, in the shapes of the documentation."""
    for backend in ("auto", *backends):
        for function in NS:
            call(function, backend)


def call(function: str, backend: str) -> None:
    """One step of training."""
    of_Wx, of_R, of_b = NG[function]
    Wx = torch.randn([B, T, of_Wx, NH, D], device=DEVICE, requires_grad=True)
    R = torch.randn([of_R, NH, D, D], device=DEVICE, requires_grad=True)
    b = torch.randn([of_b, NH, D], device=DEVICE, requires_grad=True)
    states_initial = torch.zeros([NS[function], B, NH, D], device=DEVICE, requires_grad=True)
    states, last_states = flashrnn.flashrnn(Wx, R, b, states_initial, function=function, backend=backend)
    assert states.shape == (NS[function], B, T, NH, D)
    assert last_states.shape == (NS[function], B, 1, NH, D)
    assert torch.equal(states[:, :, -1:], last_states)
    states[0].sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (Wx, R, b, states_initial))


def check_testing_is_missing() -> None:
    """The testing helpers say which package they are in."""
    error = error_of(lambda: __import__("flashrnn.tests.utils"), ImportError)
    assert "flashrnn-testing: install it" in error, error


def check_testing(backends: list[str]) -> None:
    """The documented ways to compare backends; the pytest plug-in."""
    from flashrnn.tests.utils import compare_with_baseline, create_inputs, model_test
    from flashrnn.vanilla_fwbw import lstm_pointwise_fw, lstm_pt_fwbw

    for backend in backends:
        for dtype in ("float32", "bfloat16"):
            assert model_test(
                batch_size=B,
                sequence_size=T,
                num_heads=NH,
                head_dim=D,
                backend=backend,
                backend_cmp="vanilla" if backend == "vanilla_fwbw" else "vanilla_fwbw",
                function="slstm",
                dtype=dtype,
                include_backward=True,
                tensor_compare_kwargs={"atol": 0.5, "rtol": 1.0},
            )
    inputs = create_inputs(B, T, NH, D, "lstm")
    assert max(compare_with_baseline(lstm_pt_fwbw, inputs, lstm_pointwise_fw).values()) < 1e-3
    assert "@pytest.mark.gpu" in output("-m", "pytest", "--markers")


def output(*arguments: str) -> str:
    """What this interpreter prints."""
    command = [sys.executable, "-I", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def error_of(function: Any, kind: type[Exception]) -> str:
    """The message of the error that a function has to raise."""
    try:
        function()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def main(names: list[str]) -> None:
    """Check everything that these packages promise."""
    packages = {f"flashrnn-{name}" for name in names}
    torch.manual_seed(0)
    check_what_is_installed(packages)
    if "flashrnn-cuda" in packages:
        check_kernels()
    states = check_report(packages)
    ready = [name for name, state in states.items() if state == "ready"]
    check_missing_backends(packages)
    check_functions(ready)
    if "flashrnn-testing" in packages:
        check_testing(ready)
    else:
        check_testing_is_missing()
    print(f"{', '.join(sorted(packages))}: fine\n")


if __name__ == "__main__":
    main(sys.argv[1:])
