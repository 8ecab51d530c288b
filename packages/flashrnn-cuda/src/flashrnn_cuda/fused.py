"""The backend `cuda_fused`: product and pointwise step in one persistent kernel, R on the chip for the whole sequence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Optional, Union

import torch
from torch import Tensor

from flashrnn.backend import Backend
from flashrnn.config import FlashRNNConfig
from flashrnn.errors import BackendUnavailable
from flashrnn.problem import InputGradients, Inputs, OutputGradients, Outputs, Problem

from . import arguments as pack
from . import gradients, recompute
from .availability import why_not_built, why_not_cuda
from .catalogue import fused
from .compile.kernel import Kernel
from .device import device, index_of
from .driver import Function
from .gradients import fill_weight_and_bias_gradients, gate_gradients, gradient_limits
from .launch import function
from .plan import THROUGH_L2, Layout, Pass, fastest, layouts, plan, tiles_of, waves
from .recompute import recompute_saved


@lru_cache(maxsize=1024)
def layout_of(problem: Problem, direction: str) -> Union[Layout, str]:
    """The layout of one pass of a problem, or why there is none."""
    return plan(pass_of(problem, direction), device(index_of(problem.device)), **_forced)


def pass_of(problem: Problem, direction: str) -> Pass:
    """What a plan is made for."""
    sizes = problem.head_dim, problem.num_heads, problem.batch_size
    has_options = problem.has_lengths or problem.has_resets or is_limited(problem.config)
    return Pass(direction, problem.cell, problem.dtype.itemsize, *sizes, has_options)


FIRST_GROUP, NO_MAIL = 0, -1
"""Of heads and tiles of batch rows; EMPTY in kernels/exchange/grid.cuh."""

_forced: dict[str, Any] = {}


@contextmanager
def forced(**options: Union[str, int]) -> Iterator[None]:
    """Plan with these options of `plan` alone, such as exchange="grid", on all threads: for tests and measurements."""
    _forced.update(options)
    layout_of.cache_clear()
    try:
        yield
    finally:
        _forced.clear()
        layout_of.cache_clear()


class CudaFused(Backend):
    """`cuda_fused`: NVIDIA GPUs from compute capability 8.0, float32, float16 and bfloat16, head_dim that fits the chip."""

    name = "cuda_fused"
    priority = 30
    interface_version = 1

    def why_not(self, problem: Problem) -> Optional[str]:
        """The device, the dtype, the function, an R too large for the chip, or a kernel that cannot be compiled here."""
        reason = why_not_cuda(self.name, problem)
        if reason is not None:
            return reason
        for direction in directions(problem):
            layout = layout_of(problem, direction)
            if isinstance(layout, str):
                return layout
        return why_not_built(self.name, problem, kernels(problem))

    def how(self, problem: Problem) -> str:
        """The layouts, and the expected times of all steps."""
        return "; ".join(f"{direction} {self._how(problem, direction)}" for direction in directions(problem))

    @staticmethod
    def _how(problem: Problem, direction: str) -> str:
        layout, gpu = settled(layout_of(problem, direction)), device(index_of(problem.device))
        milliseconds = waves(layout, pass_of(problem, direction), gpu) * layout.step_ns * problem.sequence_size / 1e6
        return f"{layout}, {milliseconds:.2f} ms in all"

    def forward(self, problem: Problem, inputs: Inputs, outputs: Outputs) -> None:
        """One launch; see kernels/fused/forward.cuh."""
        layout = settled(layout_of(problem, "forward"))
        mailbox = mailbox_of(problem, layout)
        Wx, saved = pack.arrays(inputs.Wx, pack.INPUT), pack.arrays(outputs.saved, pack.SAVED)
        states = pack.arrays(outputs.states)
        arguments = pack.FORWARD.pack(
            FIRST_GROUP,
            *pack.forward_loop(problem, inputs.R, inputs, outputs),
            data_of(mailbox),
            *Wx,
            *states,
            *saved,
            pack.or_none(problem.config.forward_clipval),
        )
        kernel = kernel_of(problem, "forward", layout, pack.piece_bytes(problem, Wx, states, saved))
        launch(problem, kernel, layout, arguments)

    def backward(
        self, problem: Problem, inputs: Inputs, outputs: Outputs, grads: OutputGradients, into: InputGradients
    ) -> None:
        """One launch, see kernels/fused/backward.cuh; then what is left of the gradients of R and b."""
        activations = outputs.saved if outputs.saved is not None else recompute_saved(problem, inputs, outputs)
        d_gates = gate_gradients(problem, into, all_needed=into.R is not None)
        states, saved = pack.arrays(outputs.states), pack.arrays(activations, pack.SAVED)
        d_states, d_input, d_others = pack.arrays(grads.states), *d_gates.arrays()
        piece = pack.piece_bytes(problem, states, saved, d_states, d_input, d_others)
        layout, kernel = way_back(problem, piece, grads.states is not None)
        d_bias = bias_gradient(problem, layout) if into.b is not None else None
        mailbox = mailbox_of(problem, layout)
        arguments = pack.BACKWARD.pack(
            FIRST_GROUP,
            *pack.backward_loop(problem, inputs.R, inputs, grads, into),
            data_of(mailbox),
            *states,
            *saved,
            *d_states,
            *d_input,
            *d_others,
            data_of(d_bias),
            *gradient_limits(problem),
        )
        launch(problem, kernel, layout, arguments)
        fill_weight_and_bias_gradients(problem, into, d_gates, inputs, outputs.states, d_bias)


def directions(problem: Problem) -> tuple[str, ...]:
    """The passes that may be asked for."""
    return ("forward", "backward") if problem.requires_grad else ("forward",)


def kernels(problem: Problem) -> Iterator[Kernel]:
    """Those that a call may ask for, of tensors whose rows begin where contiguous ones do."""
    piece = pack.piece_bytes(problem)
    yield kernel_of(problem, "forward", settled(layout_of(problem, "forward")), piece)
    if problem.requires_grad:
        for outside in (False, True):
            yield kernel_of(problem, "backward", settled(layout_of(problem, "backward")), piece, outside)
        yield from gradients.kernels(problem)
        yield from recompute.kernels(problem)


@lru_cache(maxsize=1024)
def kernel_of(problem: Problem, direction: str, layout: Layout, piece: int, outside: bool = False) -> Kernel:
    """The kernel of one pass; `outside`: whether a gradient of all states comes in."""
    flags = {"SAVE": problem.saves_activations} if direction == "forward" else {"OUTSIDE": outside}
    limited = problem.config.forward_clipval is not None if direction == "forward" else is_limited(problem.config)
    masked = problem.has_lengths or problem.has_resets
    return fused(direction, problem.cell, problem.dtype, layout, piece, MASKED=masked, LIMITED=limited, **flags)


def way_back(problem: Problem, piece: int, outside: bool) -> tuple[Layout, Kernel]:
    """The layout and the kernel of the backward pass: without clusters where those planned find no room on the device.

    Which SMs form clusters differs even between GPUs of one name; the driver knows, once the kernel is loaded.
    """
    layout = settled(layout_of(problem, "backward"))
    kernel = kernel_of(problem, "backward", layout, piece, outside)
    if layout.exchange != "clusters" or loaded(problem, kernel, layout).resident(layout.threads) >= layout.ctas:
        return layout, kernel
    layout = without_clusters(problem) or layout
    return layout, kernel_of(problem, "backward", layout, piece, outside)


@lru_cache(maxsize=1024)
def without_clusters(problem: Problem) -> Optional[Layout]:
    """The fastest layout of the backward pass that has none, if there is one."""
    wanted, gpu = pass_of(problem, "backward"), device(index_of(problem.device))
    found = [layout for layout in layouts(wanted, gpu) if layout.cluster == 1]
    return fastest(found, wanted, gpu) if found else None


def is_limited(config: FlashRNNConfig) -> bool:
    """Whether something is clipped or cut on the way back."""
    clipvals = (config.forward_clipval, config.gradient_recurrent_clipval)
    return config.gradient_recurrent_cut or any(v is not None for v in clipvals)


def settled(layout: Union[Layout, str]) -> Layout:
    """A layout that why_not has found, or else BackendUnavailable: one was forced since that there is not."""
    if isinstance(layout, str):
        raise BackendUnavailable(layout)
    return layout


def mailbox_of(problem: Problem, layout: Layout) -> Optional[Tensor]:
    """What CTAs hand on through global memory, at first without mail; None where they have no need of it."""
    if layout.exchange not in THROUGH_L2:
        return None
    words = groups_of(problem, layout) * layout.mailbox_bytes // 4
    return torch.full((words,), NO_MAIL, dtype=torch.int32, device=problem.device)


def data_of(x: Optional[Tensor]) -> int:
    """The address of a tensor that may be missing."""
    return 0 if x is None else x.data_ptr()


def groups_of(problem: Problem, layout: Layout) -> int:
    """Heads times tiles of batch rows."""
    return problem.num_heads * tiles_of(layout, problem.batch_size)


def launch(problem: Problem, kernel: Kernel, layout: Layout, arguments: bytes) -> None:
    """As many CTAs as the layout has, for each group; those of a grid run together, in several launches if need be."""
    groups, found = groups_of(problem, layout), loaded(problem, kernel, layout)
    if layout.exchange not in THROUGH_L2:
        found.launch((groups * layout.ctas,), layout.threads, arguments)
        return
    room = found.resident(layout.threads)
    if room < layout.ctas:
        raise RuntimeError(
            f"cuda_fused: {layout} have to run at a time, and this device has room for {room}; backend='cuda' needs none."
        )
    at_once = room // layout.ctas
    for first in range(FIRST_GROUP, groups, at_once):
        count = min(at_once, groups - first)
        found.launch((count * layout.ctas,), layout.threads, pack.starting_at(first, arguments), cooperative=True)


def loaded(problem: Problem, kernel: Kernel, layout: Layout) -> Function:
    """The kernel on the problem's device."""
    return function(kernel, index_of(problem.device), layout.shared_bytes, layout.cluster)


def bias_gradient(problem: Problem, layout: Layout) -> Tensor:
    """The gradient of b by tile of batch rows, to be summed: [tiles, NB, NH, D] float32."""
    shape = (tiles_of(layout, problem.batch_size), len(problem.cell.bias_gates), problem.num_heads, problem.head_dim)
    return torch.empty(shape, dtype=torch.float32, device=problem.device)


CUDA_FUSED = CudaFused()
