"""Kernels by what they compute: the few lines of CUDA that instantiate the headers in kernels/."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch

from flashrnn.cells import CellSpec

from .compile.kernel import Kernel
from .compile.sources import KERNELS
from .plan import Layout

TYPES = {torch.float32: "float", torch.float16: "f16", torch.bfloat16: "bf16"}
"""Element types in CUDA by dtype: all that kernels compute in."""


def has_cell(function: str) -> bool:
    """Whether the mathematics of this function is there in CUDA."""
    return (KERNELS / "cells" / f"{function}.cuh").is_file()


@cache
def fused(direction: str, cell: CellSpec, dtype: torch.dtype, layout: Layout, piece: int, **flags: bool) -> Kernel:
    """A fused pass.

    Args:
        direction: "forward" or "backward".
        cell, dtype, layout: what, in what, how.
        piece: bytes that rows are moved in.
        flags: MASKED, LIMITED, and SAVE (forward) or OUTSIDE (backward).
    """
    plan = f"{direction.title()}Plan<Config>"
    numbers = {
        "D": layout.D,
        "COLUMNS": layout.columns,
        "BLOCKS": layout.blocks,
        "SPLIT": layout.split,
        "KEPT": layout.kept,
        "HELPERS_KEPT": layout.helpers_kept,
        "TRANSFER_WARPS": layout.transfer_warps,
        "STAGES": layout.stages,
        "PIECE": piece,
    }
    cluster = "" if layout.cluster == 1 else f"__cluster_dims__({layout.cluster}, 1, 1) "
    text = f"""#include "fused/{direction}.cuh"
#include "exchange/{layout.exchange}.cuh"
{config(cell, dtype, numbers, flags, [f"using Exchange = {exchange(layout)};"])}
static_assert({plan}::THREADS == {layout.threads}, "plan.py counts other threads");
static_assert({plan}::SHARED_BYTES <= {layout.shared_bytes}, "plan.py counts less shared memory");

extern "C" __global__ {cluster}__launch_bounds__({layout.threads}, 1) void fused_{direction}_kernel(
    const __grid_constant__ {direction.title()}Arguments arguments) {{
  fused_{direction}<Config>(arguments);
}}
"""
    name = f"{title('fused', direction, cell, dtype)} D={layout.D}" + (f" on {layout.ctas} SMs" if layout.ctas > 1 else "")
    return Kernel(name, f"fused_{direction}_kernel", text)


def exchange(layout: Layout) -> str:
    """The exchange of a layout in CUDA."""
    sizes = {"local": (), "clusters": (layout.ctas, layout.cluster)}.get(layout.exchange, (layout.ctas,))
    return layout.exchange.title() + (f"<{', '.join(map(str, sizes))}>" if sizes else "")


@cache
def alternating(direction: str, cell: CellSpec, dtype: torch.dtype, blocks: int, columns: int, **flags: bool) -> Kernel:
    """An alternating pass, for items of 8 * blocks units and 8 * columns batch rows."""
    name = f"Alternating{direction.title()}"
    text = f"""#include "alternating/{direction}.cuh"
{config(cell, dtype, {"BLOCKS": blocks, "COLUMNS": columns}, flags)}
extern "C" __global__ __launch_bounds__(THREADS, 1) void alternating_{direction}_kernel(
    const __grid_constant__ {name}Arguments arguments) {{
  extern __shared__ float shared[];
  {name}<Config>{{arguments}}.run(shared);
}}
"""
    title_ = f"{title('alternating', direction, cell, dtype)}, {8 * columns} rows"
    return Kernel(title_, f"alternating_{direction}_kernel", text)


@cache
def weight_gradient(dtype: torch.dtype, piece: int) -> Kernel:
    """The gradient of R where cuBLAS would make few CTAs."""
    text = f"""#include "gradient/weights.cuh"

using namespace flashrnn;

struct Config {{
  using T = {TYPES[dtype]};
  static constexpr int PIECE = {piece};
}};

extern "C" __global__ __launch_bounds__(GRADIENT_THREADS, 4) void weight_gradient_kernel(
    const __grid_constant__ WeightGradientArguments arguments) {{
  extern __shared__ __align__(16) char memory[];
  WeightGradient<Config>{{arguments, memory}}.run();
}}
"""
    return Kernel(f"gradient of R {name_of(dtype)}", "weight_gradient_kernel", text)


@cache
def sums() -> Kernel:
    """The gradients of R and b from their parts."""
    text = """#include "gradient/sums.cuh"

using namespace flashrnn;

extern "C" __global__ void sums_kernel(const __grid_constant__ SumsArguments arguments) { sum_parts(arguments); }
"""
    return Kernel("sums of gradients", "sums_kernel", text)


@cache
def replay(cell: CellSpec, dtype: torch.dtype) -> Kernel:
    """The pointwise steps again, the recurrent products given."""
    text = f"""#include "pointwise/replay.cuh"
{config(cell, dtype, {}, {})}
extern "C" __global__ void replay_kernel(const __grid_constant__ ReplayArguments arguments) {{
  replay<Config>(arguments);
}}
"""
    return Kernel(title("replay", "forward", cell, dtype), "replay_kernel", text)


def title(kind: str, direction: str, cell: CellSpec, dtype: torch.dtype) -> str:
    """A kernel's name for people."""
    return f"{kind} {direction} {cell.name} {name_of(dtype)}"


def name_of(dtype: torch.dtype) -> str:
    """A dtype without its module."""
    return str(dtype).replace("torch.", "")


def config(
    cell: CellSpec, dtype: torch.dtype, numbers: dict[str, int], flags: dict[str, bool], more: Sequence[str] = ()
) -> str:
    """The struct that instantiates a kernel."""
    lines = [
        f'#include "cells/{cell.name}.cuh"',
        "",
        "using namespace flashrnn;",
        "",
        "struct Config {",
        f"  using T = {TYPES[dtype]};",
        f"  using Cell = {cell.name.capitalize()}<Math<T>>;",
        *(f"  static constexpr int {name} = {value};" for name, value in numbers.items()),
        *(f"  static constexpr bool {name} = {str(value).lower()};" for name, value in sorted(flags.items())),
        *(f"  {line}" for line in more),
        "};",
        "",
    ]
    return "\n".join(lines)
