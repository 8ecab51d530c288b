"""Sessions for working on FlashRNN: `nox -l` lists them, `nox -s tests` runs one; arguments after `--` are passed on.

They share one environment, .nox/python3.X, because PyTorch is large: it is made once, and made up to date when what goes
into it has changed. Only `build` has one of its own, which is empty at first each time.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nox

PACKAGES = ("core", "testing", "cuda", "triton")
"""flashrnn-NAME in packages/, each after those it needs. A new one is one more name here; its session test_NAME follows."""

TOOLS = ("matplotlib", "numpy", "nvidia-cuda-nvrtc", "pytest", "pytest-xdist", "setuptools", "torch", "tqdm")
LINT_TOOLS = ("import-linter", "mypy", "nox", "ruff") if sys.version_info >= (3, 11) else ()

ROOT = Path(__file__).parent
FOLDERS = {name: ROOT / "packages" / f"flashrnn-{name}" for name in PACKAGES}
CONSTRAINTS = ROOT / "constraints.txt"
ENVIRONMENT = ROOT / ".nox" / f"python{sys.version_info.major}.{sys.version_info.minor}"

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "tests"]


def environment(session: nox.Session) -> Path:
    """The folder of programs of the shared environment, in which all packages are installed from the source tree."""
    programs = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin")
    recipe = "\n".join([*TOOLS, *LINT_TOOLS, CONSTRAINTS.read_text(), *(metadata(folder) for folder in FOLDERS.values())])
    made = ENVIRONMENT / "recipe.txt"
    if made.exists() and made.read_text() == recipe:
        return programs
    made.unlink(missing_ok=True)
    session.run(sys.executable, "-m", "virtualenv", "--quiet", str(ENVIRONMENT), external=True)
    install = (str(programs / "python"), "-m", "pip", "install", "--constraint", str(CONSTRAINTS))
    session.run(*install, *TOOLS, *LINT_TOOLS, external=True)
    sources = [word for folder in FOLDERS.values() for word in ("--editable", str(folder))]
    session.run(*install, "--no-build-isolation", *sources, external=True)
    made.write_text(recipe)
    return programs


def metadata(folder: Path) -> str:
    """The files from which the installed metadata of a package is made."""
    return "\n".join(path.read_text() for path in (folder / "pyproject.toml", *folder.glob("src/*/version.py")))


def run(session: nox.Session, program: str, *arguments: str, **env: str) -> None:
    """Run a program of the shared environment."""
    session.run(str(environment(session) / program), *arguments, env=env, external=True)


def run_pytest(session: nox.Session, *folders: str) -> None:
    """Run the tests in these folders, all if there are none: one process a core, each with one thread."""
    arguments = session.posargs or ["--numprocesses=auto", "--maxprocesses=8"]
    run(session, "pytest", *folders, *arguments, OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"))


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests of all packages."""
    run_pytest(session)


OLDEST = (
    "numpy==1.26.4",
    "pytest==8.4.2",
    "pytest-xdist==3.8.0",
    "setuptools==82.0.1",
    "torch==2.4.0",
    "triton==3.0.0; platform_system == 'Linux'",
)
"""The oldest supported versions, see environment_pt240cu124.yaml; and what tests need, as the oldest Python takes it."""


@nox.session(venv_backend="virtualenv")
def oldest(session: nox.Session) -> None:
    """Run the tests of flashrnn-triton with the oldest PyTorch and Triton."""
    if sys.version_info >= (3, 13):
        session.skip("PyTorch 2.4 needs Python 3.12 or older")
    session.install(*OLDEST)
    sources = [word for name in ("core", "testing", "triton") for word in ("--editable", str(FOLDERS[name]))]
    session.install("--no-build-isolation", *sources)
    arguments = session.posargs or ["--numprocesses=auto", "--maxprocesses=8"]
    session.run("pytest", "packages/flashrnn-triton/tests", *arguments, env={"OMP_NUM_THREADS": "1"})


def add_test_session(name: str) -> None:
    """Add the session test_NAME."""

    def test(session: nox.Session) -> None:
        run_pytest(session, f"packages/flashrnn-{name}/tests")

    test.__doc__ = f"Run the tests of flashrnn-{name}."
    nox.session(name=f"test_{name}", venv_backend="none")(test)


for package in PACKAGES:
    add_test_session(package)


@nox.session(venv_backend="none")
def demo(session: nox.Session) -> None:
    """Train a small character model: examples/char_lm.py."""
    run(session, "python", "examples/char_lm.py", *session.posargs, MPLBACKEND="Agg")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, types and the direction of imports."""
    if not LINT_TOOLS:
        session.skip("the lint tools need Python 3.11 or newer")
    run(session, "ruff", "check")
    run(session, "ruff", "format", "--check", "--diff")
    run(session, "mypy")
    run(session, "lint-imports", "--no-logo")


@nox.session(venv_backend="virtualenv", reuse_venv=False)
def build(session: nox.Session) -> None:
    """Build the wheels, install them into an empty environment, core alone first, and use them there."""
    check, pins = str(ROOT / ".ci" / "check_wheels.py"), str(CONSTRAINTS)
    env = {"PIP_CONSTRAINT": pins, "PIP_BUILD_CONSTRAINT": pins}
    with TemporaryDirectory() as folder, session.chdir(folder):
        wheels = []
        for name, source in FOLDERS.items():
            shutil.copytree(source, name, ignore=shutil.ignore_patterns("*.egg-info"))
            shutil.rmtree(f"{name}/build", ignore_errors=True)  # what an earlier build left would end up in the wheel
            session.run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir=wheels", f"./{name}", env=env)
            wheels.append(str(next(Path("wheels").glob(f"flashrnn_{name}-*.whl"))))
        for count in (1, len(PACKAGES)):
            session.install(*wheels[:count], env=env)
            session.run("pip", "check")
            session.run("python", "-I", check, *PACKAGES[:count])
