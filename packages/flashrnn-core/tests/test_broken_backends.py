"""A backend that is broken is kept with its error and its distribution's name, and the others go on."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from core_plugins import FakeKernel, PlugIns, names, refusal, small_call
from flashrnn.backend import INTERFACE_VERSION
from flashrnn.discovery import find
from flashrnn.vanilla_fwbw import VANILLA_FWBW

BROKEN: dict[str, tuple[Any, str]] = {
    "import fails": ("a_module_that_fails:BACKEND", "RuntimeError: libcudart.so.99 is not there"),
    "import exits": ("a_module_that_exits:BACKEND", "SystemExit: no GPU here"),
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
    (tmp_path / "a_module_that_exits.py").write_text("raise SystemExit('no GPU here')\n")
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


@pytest.mark.parametrize(
    ("attribute", "value"),
    [("priority", "10"), ("priority", None), ("priority", True), ("aliases", None), ("aliases", (1,)), ("aliases", "fast")],
)
def test_a_backend_with_a_wrong_attribute_is_broken(plug_ins: PlugIns, attribute: str, value: Any) -> None:
    kernel = FakeKernel("kernel")
    setattr(kernel, attribute, value)
    plug_ins.offer("kernel", kernel)
    small_call()
    message = refusal("kernel")
    assert "kernel (someones-kernels 3.2) is broken" in message and attribute in message and repr(value) in message
    assert "expected one of auto, vanilla_fwbw, vanilla, kernel, got" in refusal("f")


@pytest.mark.parametrize("name", ["auto", ""])
def test_a_backend_without_a_name_of_its_own_is_broken(plug_ins: PlugIns, name: str) -> None:
    plug_ins.offer(name, FakeKernel(name))
    assert find(name).backend is None
    small_call()


@pytest.mark.parametrize("answer", [True, False, "", 3])
def test_a_why_not_that_is_no_sentence_is_a_reason(plug_ins: PlugIns, answer: Any) -> None:
    kernel = plug_ins.offer("kernel", FakeKernel("kernel"))
    kernel.why_not = lambda problem: answer
    assert f"its why_not answered {answer!r}" in refusal("kernel")
    small_call()
    assert kernel.runs == 0


@pytest.mark.parametrize("error", [ValueError("no driver"), ZeroDivisionError(), SystemExit("bye")], ids=repr)
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


def test_the_alias_of_a_broken_backend_is_not_said_to_be_missing(plug_ins: PlugIns) -> None:
    plug_ins.promise("triton_fused", "no_such_module_at_all:BACKEND", "flashrnn-triton")
    message = refusal("triton")
    assert "not installed" not in message and "install " not in message
    assert "is broken" in message and "no_such_module_at_all" in message
