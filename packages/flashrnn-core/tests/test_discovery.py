"""Which backends are found, what becomes of broken ones, and which one a call takes."""

from __future__ import annotations

import re
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core_plugins import FakeKernel, PlugIns, small_call
from flashrnn import BackendUnavailable, FlashRNNConfig
from flashrnn.backend import INTERFACE_VERSION
from flashrnn.discovery import candidates, choose, find, not_installed
from flashrnn.problem import Problem
from flashrnn.vanilla_fwbw import VANILLA_FWBW


def problem(device: str = "cpu", backend: str = "auto", dtype: torch.dtype = torch.float32, batch_size: int = 2) -> Problem:
    config = FlashRNNConfig("elman", backend, dtype)
    return Problem(config, batch_size, 3, 1, 2, torch.device(device), states_dtype=dtype)


def refusal(backend: str) -> str:
    """The message with which a call of this backend is refused."""
    with pytest.raises(BackendUnavailable) as caught:
        small_call(backend)
    assert isinstance(caught.value, RuntimeError)
    return str(caught.value)


def names() -> list[str]:
    return [candidate.name for candidate in candidates()]


# --------------------------------------------------------------------------------------------------------------- choosing


def test_core_alone(plug_ins: PlugIns) -> None:
    assert names() == ["vanilla_fwbw", "vanilla"]
    assert all(x.distribution.startswith("flashrnn-core") and x.error is None for x in candidates())
    assert choose(problem()).name == "vanilla_fwbw"
    assert choose(problem(backend="vanilla")).name == "vanilla"


def test_auto_takes_the_highest_priority_that_can(plug_ins: PlugIns) -> None:
    slow, fast = (plug_ins.offer(name, FakeKernel(name, priority)) for name, priority in (("slow", 5), ("fast", 50)))
    plug_ins.offer("best", FakeKernel("best", 90, refuses=(torch.float32, torch.float64)))
    assert names() == ["best", "fast", "slow", "vanilla_fwbw", "vanilla"]
    assert choose(problem()) is fast
    small_call()
    assert (fast.runs, slow.runs) == (1, 0)
    small_call("slow")
    assert (fast.runs, slow.runs) == (1, 1)


def test_equal_priorities_go_by_name(plug_ins: PlugIns) -> None:
    for name in ("b", "a", "c"):
        plug_ins.offer(name, FakeKernel(name))
    assert choose(problem()).name == "a"


def test_a_named_backend_never_becomes_another(plug_ins: PlugIns) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel", refuses=(torch.float64,)))
    with pytest.raises(BackendUnavailable) as caught:
        small_call("kernel", torch.float64)
    assert str(caught.value) == "kernel has no torch.float64, found torch.float64; vanilla_fwbw has it."
    assert small_call("auto", torch.float64)[0].dtype == torch.float64
    assert kernel.runs == 0
    small_call("kernel")
    assert kernel.runs == 1


def test_what_is_found_is_found_once(plug_ins: PlugIns) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        small_call(dtype=dtype)
    assert plug_ins.searches == 1


# ------------------------------------------------------------------------------------------------------ names and aliases


def test_an_alias_is_the_backend(plug_ins: PlugIns) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel", aliases=("k", "quick")))
    assert find("k").backend is find("quick").backend is find("kernel").backend is kernel
    small_call("quick")
    assert kernel.runs == 1


def test_a_name_goes_before_an_alias(plug_ins: PlugIns) -> None:
    plug_ins.offer("other", FakeKernel("other", aliases=("kernel",)))
    kernel = plug_ins.offer("kernel", FakeKernel("kernel"))
    assert find("kernel").backend is kernel


def test_an_alias_of_two_is_refused_with_both(plug_ins: PlugIns) -> None:
    plug_ins.offer("one", FakeKernel("one", aliases=("k",)), "ones-package")
    plug_ins.offer("two", FakeKernel("two", aliases=("k",)), "twos-package")
    message = refusal("k")
    for part in ("k is an alias of both", "one (ones-package 3.2)", "two (twos-package 3.2)"):
        assert part in message
    small_call("one"), small_call("two")


def test_an_unknown_name_is_refused_with_all_that_are_known(plug_ins: PlugIns) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel", aliases=("k",)))
    plug_ins.promise("broken", "no_such_module_at_all:BACKEND")
    message = refusal("cudnn")
    assert message.startswith("backend: expected one of ") and message.endswith(", got 'cudnn'.")
    listed = message[len("backend: expected one of ") :].partition(", got ")[0].split(", ")
    assert sorted(listed) == ["auto", "broken", "k", "kernel", "vanilla", "vanilla_fwbw"]


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("cuda", "flashrnn-cuda"),
        ("cuda_fused", "flashrnn-cuda"),
        ("triton", "flashrnn-triton"),
        ("triton_fused", "flashrnn-triton"),
    ],
)
def test_a_known_backend_that_is_not_installed_says_how_to_install_it(plug_ins: PlugIns, name: str, package: str) -> None:
    message = refusal(name)
    assert f"{name!r} is not installed" in message and f"pip install {package}" in message


def test_what_is_installed_is_not_missing(plug_ins: PlugIns) -> None:
    assert set(not_installed()) == {"cuda", "cuda_fused", "triton_fused"}
    plug_ins.offer("triton_fused", FakeKernel("triton_fused", aliases=("triton",)))
    assert set(not_installed()) == {"cuda", "cuda_fused"}
    small_call("triton")


def test_the_alias_of_a_broken_backend_is_not_said_to_be_missing(plug_ins: PlugIns) -> None:
    plug_ins.promise("triton_fused", "no_such_module_at_all:BACKEND", "flashrnn-triton")
    message = refusal("triton")
    assert "not installed" not in message and "pip install" not in message
    assert "is broken" in message and "no_such_module_at_all" in message


# ----------------------------------------------------------------------------------------------------------------- broken

BROKEN: dict[str, tuple[Any, str]] = {
    "import fails": ("a_module_that_fails:BACKEND", "RuntimeError: libcudart.so.99 is not there"),
    "no module": ("no_such_module_at_all:BACKEND", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "no attribute": ("a_good_module:NOT_THERE", "AttributeError: .*NOT_THERE"),
    "a class": (type(VANILLA_FWBW), "not an instance of flashrnn.backend.Backend"),
    "no backend": (SimpleNamespace(interface_version=1), "a SimpleNamespace, not an instance of flashrnn.backend.Backend"),
    "another name": (FakeKernel("kernel"), "called 'broken' but the backend calls itself 'kernel'"),
    "too new": (FakeKernel("broken", version=99), f"interface version 99, this flashrnn-core has {INTERFACE_VERSION};"),
    "too old": (FakeKernel("broken", version=0), f"interface version 0, this flashrnn-core has {INTERFACE_VERSION};"),
    "no version": (FakeKernel("broken", version=None), f"interface version None, .* has {INTERFACE_VERSION};"),
}


def promise_broken(plug_ins: PlugIns, tmp_path: Any, behind: Any) -> None:
    (tmp_path / "a_module_that_fails.py").write_text("raise RuntimeError('libcudart.so.99 is not there.')\n")
    (tmp_path / "a_good_module.py").write_text("")
    plug_ins.monkeypatch.syspath_prepend(tmp_path)
    if isinstance(behind, str):
        plug_ins.promise("broken", behind, "brokens-package")
    else:
        plug_ins.offer("broken", behind, "brokens-package")


@pytest.mark.parametrize(("behind", "said"), BROKEN.values(), ids=BROKEN)
def test_a_broken_backend_is_kept_and_the_others_go_on(plug_ins: PlugIns, tmp_path: Any, behind: Any, said: str) -> None:
    kernel = plug_ins.offer("working", FakeKernel("working"), "workings-package")
    promise_broken(plug_ins, tmp_path, behind)
    assert names() == ["working", "vanilla_fwbw", "vanilla", "broken"]  # broken ones last
    candidate = find("broken")
    assert candidate.backend is None and candidate.distribution == "brokens-package 3.2"
    message = refusal("broken")
    assert message == candidate.error and message.startswith("broken (brokens-package 3.2) is broken: ")
    assert re.search(said, message) and message.endswith(".") and not message.endswith("..")
    small_call()
    assert kernel.runs == 1


@pytest.mark.parametrize("error", [ValueError("no driver"), ZeroDivisionError()], ids=repr)
def test_a_why_not_that_raises_is_a_reason(plug_ins: PlugIns, error: Exception) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel", refuses=error))
    message = refusal("kernel")
    assert message.startswith("kernel (someones-kernels 3.2) is broken: its why_not raised ")
    assert type(error).__name__ in message and (str(error) or "no message") in message
    small_call()
    assert kernel.runs == 0


def test_two_of_one_name_and_value_count_once(plug_ins: PlugIns) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel"), "ones-package")
    plug_ins.promise("kernel", plug_ins.entries[0].value, "ones-package")
    plug_ins.promise("kernel", plug_ins.entries[0].value, "twos-package")
    assert names().count("kernel") == 1 and find("kernel").backend is kernel


def test_core_found_once_more_counts_once(plug_ins: PlugIns) -> None:
    plug_ins.promise("vanilla_fwbw", "flashrnn.vanilla_fwbw:VANILLA_FWBW", "flashrnn-core")
    assert names() == ["vanilla_fwbw", "vanilla"] and find("vanilla_fwbw").error is None


def test_two_of_one_name_and_different_values_are_an_error_with_both(plug_ins: PlugIns) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel"), "ones-package")
    plug_ins.offer("kernel", FakeKernel("kernel"), "twos-package")
    other = plug_ins.offer("other", FakeKernel("other"))
    message = refusal("kernel")
    assert "ones-package 3.2" in message and "twos-package 3.2" in message
    small_call()
    assert other.runs == 1 and names()[-1] == "kernel"


def test_auto_survives_a_plug_in_that_claims_a_name_of_core(plug_ins: PlugIns) -> None:
    plug_ins.offer("vanilla_fwbw", FakeKernel("vanilla_fwbw"), "claimants-package")
    message = refusal("vanilla_fwbw")
    assert "claimants-package 3.2" in message and "flashrnn-core" in message
    assert small_call()[0].shape == (1, 2, 3, 1, 2)  # vanilla is still there


# ---------------------------------------------------------------------------------------------- the warning of a slow choice


def test_a_gpu_tensor_on_a_reference_backend_warns_once(plug_ins: PlugIns) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel", refuses=("elman",)))
    plug_ins.promise("broken", "no_such_module_at_all:BACKEND")
    with pytest.warns(UserWarning, match="slow reference backend 'vanilla_fwbw'") as caught:
        assert choose(problem("cuda")).name == "vanilla_fwbw"
    (warning,) = caught
    for part in ("kernel has no elman", "no_such_module_at_all", "pip install flashrnn-cuda", "pip install flashrnn-triton"):
        assert part in str(warning.message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(problem("cuda"))
        choose(problem("cuda", batch_size=7))


@pytest.mark.parametrize(("device", "backend"), [("cpu", "auto"), ("cuda", "vanilla_fwbw"), ("cuda", "vanilla")])
def test_what_is_chosen_on_purpose_does_not_warn(plug_ins: PlugIns, device: str, backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose(problem(device, backend))


def test_a_gpu_tensor_on_a_kernel_does_not_warn(plug_ins: PlugIns) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose(problem("cuda")) is kernel


def test_nothing_that_can_is_an_error_with_every_reason(plug_ins: PlugIns) -> None:
    plug_ins.monkeypatch.setattr("flashrnn.discovery.BUILT_IN", {})
    plug_ins.offer("kernel", FakeKernel("kernel", refuses=(torch.float32,)))
    plug_ins.promise("broken", "no_such_module_at_all:BACKEND")
    message = refusal("auto")
    assert "kernel has no torch.float32" in message and "no_such_module_at_all" in message
