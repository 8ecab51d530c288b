"""Which backends are found, and which one a call takes."""

from __future__ import annotations

import warnings

import pytest
import torch

from core_plugins import FakeKernel, PlugIns, names, refusal, small_call
from flashrnn import BackendUnavailable, FlashRNNConfig
from flashrnn.discovery import candidates, choose, find, not_installed
from flashrnn.problem import Problem


def problem(device: str = "cpu", backend: str = "auto", dtype: torch.dtype = torch.float32, batch_size: int = 2) -> Problem:
    config = FlashRNNConfig("elman", backend, dtype)
    return Problem(config, batch_size, 3, 1, 2, torch.device(device), states_dtype=dtype)


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
    assert message.startswith("backend: expected one of ") and ", got 'cudnn'. There are also " in message
    listed = message[len("backend: expected one of ") :].partition(", got ")[0].split(", ")
    assert sorted(listed) == ["auto", "broken", "k", "kernel", "vanilla", "vanilla_fwbw"]


def test_an_unknown_name_is_refused_with_what_can_be_installed(plug_ins: PlugIns) -> None:
    ends = " There are also cuda_fused, cuda (install flashrnn-cuda) and triton_fused, triton (install flashrnn-triton)."
    assert refusal("cuda_fusd").endswith(f", got 'cuda_fusd'.{ends}")
    plug_ins.offer("triton_fused", FakeKernel("triton_fused", aliases=("triton",)))
    assert refusal("cuda_fusd").endswith(" There are also cuda_fused, cuda (install flashrnn-cuda).")
    for name in ("cuda_fused", "cuda"):
        plug_ins.offer(name, FakeKernel(name))
    assert refusal("cuda_fusd").endswith(", got 'cuda_fusd'.")


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
    assert f"{name!r} is not installed" in message and f": install {package}." in message


def test_what_is_installed_is_not_missing(plug_ins: PlugIns) -> None:
    assert set(not_installed()) == {"cuda", "cuda_fused", "triton_fused"}
    plug_ins.offer("triton_fused", FakeKernel("triton_fused", aliases=("triton",)))
    assert set(not_installed()) == {"cuda", "cuda_fused"}
    small_call("triton")


# ---------------------------------------------------------------------------------------------- the warning of a slow choice


def test_a_gpu_tensor_on_a_reference_backend_warns_once(plug_ins: PlugIns) -> None:
    plug_ins.offer("kernel", FakeKernel("kernel", refuses=("elman",)))
    plug_ins.promise("broken", "no_such_module_at_all:BACKEND")
    with pytest.warns(UserWarning, match="slow reference backend 'vanilla_fwbw'") as caught:
        assert choose(problem("cuda")).name == "vanilla_fwbw"
    (warning,) = caught
    for part in ("kernel has no elman", "no_such_module_at_all", ": install flashrnn-cuda.", ": install flashrnn-triton."):
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
