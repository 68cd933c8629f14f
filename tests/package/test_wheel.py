"""The package as strangers get it: built from a copy of the source, installed where there is not even torch.

What needs no torch works, the rest says what to install.
"""

import json
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import lpld_labels
from tests.lpld_labels.interop.label_folders import write_epochs, write_images

SOURCES = ("lpld_labels", "lpld_core", "cli", "docs", "examples")
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")


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


@pytest.fixture(scope="module")
def dist(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel built from it without the repository and without a network."""
    work = tmp_path_factory.mktemp("package")
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
    return work / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in a new environment that has what it requires, no more.

    What it requires is borrowed, distribution by distribution, from the environment of the tests: no network,
    and a requirement that pyproject.toml forgets is missing.
    """
    work = tmp_path_factory.mktemp("elsewhere")
    venv.create(work / "environment", with_pip=False, symlinks=True)
    python = str(work / "environment/bin/python")
    install = ["-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([sys.executable, *install, str(wheel)], check=True)
    (packages,) = (work / "environment").glob("lib/python*/site-packages")
    (ours,) = Distribution.discover(name="lpld-labels", path=[str(packages)])
    for owner in required(ours):
        tops = {file.parts[0] for file in owner.files or []} - {"..", "__pycache__"}
        assert tops, owner.metadata["Name"]
        for top in tops:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(owner.locate_file(top))))
    return Installed(bin=work / "environment/bin", work=work)


def required(ours: Distribution) -> list[Distribution]:
    """Return the distributions that ours needs without extras, and those that they need in turn."""
    name: str = canonicalize_name(ours.metadata["Name"])
    found = {name: ours}
    waiting = {(name, "")}
    done: set[tuple[str, str]] = set()
    while waiting:
        done.add(asked := waiting.pop())
        owner, extra = asked
        for line in found[owner].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                if needed not in found:
                    found[needed] = distribution(needed)
                waiting |= {(needed, one) for one in ("", *requirement.extras)} - done
    del found[name]
    return list(found.values())


def test_the_wheel_holds_every_file_of_the_packages(project: Path, wheel: Path) -> None:
    rooms = {"lpld_labels": "lpld_labels", "lpld_core": "lpld_core", "cli": "lpld_cli"}
    ours = {
        f"{installed_name}/{path.relative_to(project / room).as_posix()}"
        for room, installed_name in rooms.items()
        for path in (project / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == ours
    assert {"lpld_labels/SPEC.md", *(f"{name}/py.typed" for name in rooms.values())} <= held


def test_the_sdist_holds_what_a_reader_wants_and_no_tests(dist: Path) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    assert wanted | {"docs/architecture.md", "examples/plain_pytorch.py", "lpld_labels/SPEC.md"} <= held
    assert not [name for name in held if name.startswith(("tests", "benchmarks"))]


def test_the_version_is_one(wheel: Path, installed: Installed, project: Path) -> None:
    version = lpld_labels.__version__
    assert wheel.name == f"lpld_labels-{version}-py3-none-any.whl"
    assert installed.labels("--version") == f"lpld-labels {version}\n"
    assert f"## [{version}]" in (project / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (project / "CITATION.cff").read_text()


@pytest.mark.parametrize(("tag", "code"), [("v{version}", 0), ("{version}", 0), ("v0.0.1", 1)])
def test_a_release_is_of_the_tagged_version(dist: Path, project: Path, tag: str, code: int) -> None:
    build = yaml.safe_load((project / ".github/workflows/release.yml").read_text())["jobs"]["build"]
    (line,) = [step["run"] for step in build["steps"] if step.get("name") == "The tag is the version"]
    named = {"GITHUB_REF_NAME": tag.format(version=lpld_labels.__version__)}
    assert subprocess.run(["bash", "-c", line], cwd=dist.parent, env=named, check=False).returncode == code


def test_the_index_is_told_what_it_shows(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
        assert name.replace("METADATA", "licenses/LICENSE") in archive.namelist()
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# lpld-labels")
    for field in ("Summary", "Keywords", "Classifier", "Project-URL", "Requires-Python"):
        assert metadata[field], field


def test_pools_are_made_and_read_without_torch(project: Path, installed: Installed) -> None:
    work = installed.work
    pool = project / "tests" / "golden" / "v1" / "f16"
    installed.labels("prune", pool, work / "pruned", "--ratio", 2)
    installed.labels("encode", pool, work / "int8", "--codec", "int8")
    installed.labels("plan", pool, "--budget", "1MB", "--codec", "f16", "--codec", "int8", "--json")
    installed.labels("verify", work / "int8")
    installed.labels("report", work / "pruned", "--out", "report.html")
    installed.labels("copy", work / "pruned", work / "copied")
    assert "lpld-labels prune" in installed.labels("inspect", work / "copied", "--recipe")
    write_images(work / "images")
    write_epochs(work / "old", ids_file=True)
    report = json.loads(installed.labels("import", "old", "imported", "--images", "images", "--json"))
    assert report["batches"] == 9


def test_a_command_that_needs_torch_says_what_to_install(installed: Installed) -> None:
    write_images(installed.work / "pictures")
    for line in (
        "build pictures out --teacher resnet18",
        "train imported --images pictures",
        "squeeze pictures out.safetensors --teacher resnet18",
        "recover out --teacher resnet18 --ipc 1 --method sre2l",
    ):
        ended = installed.run("lpld-labels", *line.split())
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.endswith("pip install 'lpld-labels[torch]'\n")


def test_shells_complete_as_documented(project: Path, installed: Installed) -> None:
    page = (project / "docs" / "howto" / "install.md").read_text()
    for shell in ("bash", "zsh", "fish"):
        assert f"_LPLD_LABELS_COMPLETE={shell}_source lpld-labels" in page
        script = installed.run("lpld-labels", _LPLD_LABELS_COMPLETE=f"{shell}_source").stdout
        assert f"_LPLD_LABELS_COMPLETE={shell}_complete" in script
    asked = {"COMP_WORDS": "lpld-labels pru", "COMP_CWORD": "1", "_LPLD_LABELS_COMPLETE": "bash_complete"}
    assert installed.run("lpld-labels", **asked).stdout == "plain,prune\n"


def test_type_information_is_shipped(installed: Installed) -> None:
    script = installed.work / "client.py"
    script.write_text(
        "from lpld_labels import PoolReader\nreveal_type(PoolReader('pool').read((0, 3)).labels)\n"
    )
    checker = ["mypy", "--python-executable", str(installed.bin / "python"), "--follow-imports", "silent"]
    ended = subprocess.run(
        [sys.executable, "-m", *checker, script],
        cwd=installed.work,
        capture_output=True,
        text=True,
        check=False,
    )
    # Of a package without py.typed mypy says "Any" and that it found no types.
    assert 'Revealed type is "numpy.ndarray[' in ended.stdout, ended.stdout
