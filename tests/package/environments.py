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
from packaging.utils import canonicalize_name

SOURCES = ("lpld_labels", "lpld_core", "cli", "docs", "examples")
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")


@dataclass(frozen=True, kw_only=True)
class Built:
    """The two files of a release."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True, kw_only=True)
class Installed:
    """An environment with the wheel, and a directory to work in."""

    bin: Path
    work: Path

    def run(self, *words: object, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, where the repository cannot be seen."""
        command = [str(self.bin / str(words[0])), *map(str, words[1:])]
        variables["PATH"] = str(self.bin)
        return subprocess.run(
            command, cwd=self.work, capture_output=True, text=True, check=False, env=variables
        )

    def labels(self, *words: object) -> str:
        """Run a command that has to succeed and return its stdout."""
        ended = self.run("lpld-labels", *words)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


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


def install(wheel: Path, environment: Path, *, extra: str = "") -> Path:
    """Install a wheel into a new environment that has what the wheel requires, no more; return its bin.

    What it requires is borrowed, distribution by distribution, from the environment of the tests: no network,
    and a requirement that pyproject.toml forgets is missing.
    """
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    install = ["-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([sys.executable, *install, str(wheel)], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (ours,) = Distribution.discover(name="lpld-labels", path=[str(packages)])
    for owner in required(ours, extra).values():
        borrow(owner, packages)
    return environment / "bin"


def required(ours: Distribution, extra: str) -> dict[str, Distribution]:
    """Return the distributions, by name, that ours needs with an extra, and those that they need in turn."""
    name: str = canonicalize_name(ours.metadata["Name"])
    found = {name: ours}
    waiting = {(name, ""), (name, extra)}
    done: set[tuple[str, str]] = set()
    while waiting:
        done.add(asked := waiting.pop())
        owner, with_extra = asked
        for line in found[owner].requires or []:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": with_extra}):
                continue
            needed = canonicalize_name(requirement.name)
            if needed not in found:
                found[needed] = distribution(needed)
            waiting |= {(needed, one) for one in ("", *requirement.extras)} - done
    del found[name]
    return found


def borrow(owner: Distribution, packages: Path) -> None:
    """Link the top-level files and directories of an installed distribution into `packages`."""
    tops = {file.parts[0] for file in owner.files or []} - {"..", "__pycache__"}
    assert tops, owner.metadata["Name"]
    for top in tops:
        if not (packages / top).exists():
            (packages / top).symlink_to(Path(str(owner.locate_file(top))))
