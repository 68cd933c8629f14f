"""The package as strangers get it: built from a copy of the source, installed where nothing else is."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement

SOURCES = ("lpld_labels", "lpld_core", "cli", "docs", "examples")
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")


@dataclass(frozen=True, kw_only=True)
class Built:
    """The two files of a release."""

    sdist: Path
    wheel: Path


def build_package(project: Path, work: Path) -> Built:
    """Build the sdist and from it the wheel, away from the repository and without a network."""
    source = work / "source"
    source.mkdir()
    for path in project.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    for name in SOURCES:
        shutil.copytree(project / name, source / name, ignore=NO_CACHES)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(work / "dist"), str(source)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (sdist,) = (work / "dist").glob("*.tar.gz")
    (wheel,) = (work / "dist").glob("*.whl")
    return Built(sdist=sdist, wheel=wheel)


def install(wheel: Path, environment: Path) -> Path:
    """Install a wheel into a new environment that has what the wheel requires, no more; return its bin.

    What it requires is borrowed, distribution by distribution, from the environment of the tests: no network,
    and a requirement that pyproject.toml forgets is missing.
    """
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([sys.executable, *install, str(wheel)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in sorted(required("lpld-labels", packages)):
        borrow(distribution(name), packages)
    return environment / "bin"


def required(name: str, packages: Path) -> set[str]:
    """Return the distributions that an installed one needs, and those that they need, without extras."""
    (root,) = Distribution.discover(name=name, path=[str(packages)])
    found: set[str] = set()
    waiting = list(root.requires or [])
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found.add(requirement.name)
            waiting += distribution(requirement.name).requires or []
    return found


def borrow(owner: Distribution, packages: Path) -> None:
    """Link the top-level files and directories of an installed distribution into `packages`."""
    tops = {file.parts[0] for file in owner.files or []} - {"..", "__pycache__"}
    assert tops, owner.metadata["Name"]
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(owner.locate_file(top))))
