"""nvcc, run by ninja: many kernels at once, where there is a CUDA toolkit with a host compiler."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Optional

from .errors import CompileError, compile_error
from .kernel import FLAGS, Compiled, Job, Kernel
from .sources import include_paths

FOLDERS = ("CUDA_HOME", "CUDA_PATH")
OPTIONS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
"""Variables with which users hand nvcc options of their own."""


def nvcc_path() -> Optional[str]:
    """The path of nvcc: of CUDA_HOME, on the PATH, or of /usr/local/cuda; None if there is none."""
    homes = [os.environ[name] for name in FOLDERS if os.environ.get(name)]
    for folder in (*(os.path.join(home, "bin") for home in homes), None, "/usr/local/cuda/bin"):
        path = shutil.which("nvcc", path=folder)
        if path is not None:
            return os.path.abspath(path)
    return None


def find_ninja() -> str:
    """The path of ninja: of its pip package, else whatever the PATH has."""
    try:
        from ninja import BIN_DIR
    except ImportError:
        return "ninja"
    return shutil.which("ninja", path=BIN_DIR) or "ninja"


class Nvcc:
    """nvcc of this machine.

    Neither ninja's shell nor the one that nvcc itself starts sees a path of the user's, but for that of nvcc, which is
    quoted: they work in a private folder, with names relative to it, where links lead to the include paths.

    Attributes:
        name: with its version, for people and for the names of cache entries.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        report = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        version = re.search(r"V(\d[\d.]*)", report)
        options = [f" with {name}={os.environ[name]}" for name in OPTIONS if os.environ.get(name)]
        self.name = f"nvcc {version.group(1) if version else 'of unknown version'}" + "".join(options)

    def flags(self, architecture: str) -> list[str]:
        """All options but the include paths."""
        number = architecture[len("sm_") :]
        target = f"-gencode=arch=compute_{number},code=sm_{number}"
        return [*FLAGS, "-cubin", target, "--expt-relaxed-constexpr", "-Xptxas=-v"]

    def compile(self, kernel: Kernel, architecture: str) -> Compiled:
        """The kernel's cubin for an architecture such as sm_90a.

        Raises:
            CompileError: with the kernel's name and the compiler's first error on top.
        """
        return self.compile_many([(kernel, architecture)])[0]

    def compile_many(self, jobs: Sequence[Job]) -> list[Compiled]:
        """The results of all jobs, in their order.

        Raises:
            CompileError: of one that failed, after all others.
        """
        results = dict(self.compile_each(jobs))
        return [results[job] for job in jobs]

    def compile_each(self, jobs: Sequence[Job]) -> Iterator[tuple[Job, Compiled]]:
        """Each job with its result, as they are ready, as many at a time as ninja finds right.

        Raises:
            CompileError: of one that failed, after all others.
        """
        with TemporaryDirectory(prefix="flashrnn-") as name:
            folder = Path(name)
            self.write_build(folder, jobs)
            finished: set[int] = set()
            for i in run_ninja(folder):
                if (folder / f"{i}.cubin").exists():
                    finished.add(i)
                    yield jobs[i], Compiled((folder / f"{i}.cubin").read_bytes(), read_log(folder, i))
            for i, (kernel, architecture) in enumerate(jobs):
                if i not in finished:
                    raise compile_error(kernel, self.name, architecture, read_log(folder, i))

    def write_build(self, folder: Path, jobs: Sequence[Job]) -> None:
        """Fill the private folder: sources, links to the include paths, and build.ninja."""
        includes = []
        for i, path in enumerate(include_paths()):
            os.symlink(path, folder / f"include{i}")
            includes += ["-I", f"include{i}"]
        program = shlex.quote(self.path).replace("$", "$$")
        command = f"{program} $flags $in -o $out.part > $out.log 2>&1 && mv $out.part $out"
        lines = ["rule cubin", f"  command = {command}", "  description = finished $out"]
        for i, (kernel, architecture) in enumerate(jobs):
            (folder / f"{i}.cu").write_text(kernel.text, encoding="utf-8")
            lines += [f"build {i}.cubin: cubin {i}.cu", f"  flags = {' '.join(self.flags(architecture) + includes)}"]
        (folder / "build.ninja").write_text("\n".join([*lines, ""]), encoding="utf-8", errors="surrogateescape")


def run_ninja(folder: Path) -> Iterator[int]:
    """Run the build of a folder; gives the number of each job when it has ended, well or not.

    Raises:
        CompileError: ninja could not be run at all.
    """
    environment = {**os.environ, "NINJA_STATUS": "", "TMPDIR": "."}
    command = [find_ninja(), "-k", "0"]
    try:
        ninja = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise CompileError(f"nvcc is run by ninja, which could not be started ({error}): pip install ninja.") from error
    with ninja:
        for line in ninja.stdout or ():
            ended = re.fullmatch(r"finished (\d+)\.cubin", line.strip())
            if ended:
                yield int(ended.group(1))


def read_log(folder: Path, i: int) -> str:
    """What nvcc said about job i, with the include paths themselves instead of the links to them."""
    try:
        log = (folder / f"{i}.cubin.log").read_text(errors="replace")
    except OSError:
        return "nvcc was not run"
    for number, path in enumerate(include_paths()):
        log = log.replace(f"include{number}/", f"{path}/")
    return log


def find_nvcc() -> Optional[Nvcc]:
    """nvcc of this machine; None if there is none that works."""
    path = nvcc_path()
    try:
        return None if path is None else Nvcc(path)
    except (OSError, subprocess.SubprocessError):
        return None
