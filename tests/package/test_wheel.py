"""The wheel without torch: what needs none works, the rest says what to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import lpld_labels
from tests.lpld_labels.interop.label_folders import write_epochs, write_images
from tests.package.environments import Built, Installed, install


@pytest.fixture(scope="module")
def installed(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    work = tmp_path_factory.mktemp("elsewhere")
    return Installed(bin=install(built.wheel, work / "environment"), work=work)


def test_the_wheel_holds_every_file_of_the_packages(project: Path, built: Built) -> None:
    rooms = {"lpld_labels": "lpld_labels", "lpld_core": "lpld_core", "cli": "lpld_cli"}
    ours = {
        f"{installed_name}/{path.relative_to(project / room).as_posix()}"
        for room, installed_name in rooms.items()
        for path in (project / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(built.wheel) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == ours
    assert {"lpld_labels/SPEC.md", *(f"{name}/py.typed" for name in rooms.values())} <= held


def test_the_sdist_holds_what_a_reader_wants_and_no_tests(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        held = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
    assert wanted | {"docs/architecture.md", "examples/plain_pytorch.py", "lpld_labels/SPEC.md"} <= held
    assert not [name for name in held if name.startswith(("tests", "benchmarks"))]


def test_the_version_is_one(built: Built, installed: Installed, project: Path) -> None:
    version = lpld_labels.__version__
    assert built.wheel.name == f"lpld_labels-{version}-py3-none-any.whl"
    assert installed.labels("--version") == f"lpld-labels {version}\n"
    assert f"## [{version}]" in (project / "CHANGELOG.md").read_text()
    assert f"\nversion: {version}\n" in (project / "CITATION.cff").read_text()


def test_pools_are_made_and_read_without_torch(project: Path, installed: Installed) -> None:
    work = installed.work
    pool = project / "tests" / "golden" / "v1" / "f16"
    assert json.loads(installed.labels("inspect", pool, "--json"))["codec"] == "f16"
    installed.labels("verify", pool)
    installed.labels("prune", pool, work / "pruned", "--ratio", 2)
    installed.labels("encode", pool, work / "int8", "--codec", "int8")
    installed.labels("plan", pool, "--budget", "1MB", "--codec", "f16", "--codec", "int8", "--json")
    for made in ("pruned", "int8"):
        installed.labels("verify", work / made)
    installed.labels("report", work / "pruned", "--out", "report.html")
    installed.labels("copy", work / "pruned", work / "copied")
    assert "lpld-labels prune" in installed.labels("inspect", work / "copied", "--recipe")
    write_images(work / "images")
    write_epochs(work / "old", ids_file=True)
    report = json.loads(installed.labels("import", "old", "imported", "--images", "images", "--json"))
    assert report["batches"] == 9
    assert "batches" in installed.labels("inspect", "imported")


@pytest.mark.parametrize("words", [["python", "-m", "lpld_cli", "--help"], ["lpld-labels", "--help"]])
def test_both_ways_to_start_it(installed: Installed, words: list[str]) -> None:
    assert "A session, from real images to a student" in installed.run(*words).stdout


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["build", "images", "out", "--teacher", "resnet18"], "torch"),
        (["train", "imported", "--images", "images"], "torch"),
        (["squeeze", "images", "out.safetensors", "--teacher", "resnet18"], "torch"),
        (["recover", "out", "--teacher", "resnet18", "--ipc", "1", "--method", "sre2l"], "torch"),
    ],
)
def test_a_command_that_needs_torch_says_what_to_install(
    installed: Installed, words: list[str], extra: str
) -> None:
    write_images(installed.work / "images")
    ended = installed.run("lpld-labels", *words)
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr.count("\n") == 1, ended.stderr
    assert ended.stderr.endswith(f"pip install 'lpld-labels[{extra}]'\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_as_documented(project: Path, installed: Installed, shell: str) -> None:
    line = f"_LPLD_LABELS_COMPLETE={shell}_source lpld-labels"
    assert line in (project / "docs" / "howto" / "install.md").read_text()
    script = installed.run("lpld-labels", _LPLD_LABELS_COMPLETE=f"{shell}_source").stdout
    assert f"_LPLD_LABELS_COMPLETE={shell}_complete" in script


def test_commands_are_completed(installed: Installed) -> None:
    asked = {"COMP_WORDS": "lpld-labels pru", "COMP_CWORD": "1", "_LPLD_LABELS_COMPLETE": "bash_complete"}
    assert installed.run("lpld-labels", **asked).stdout == "plain,prune\n"


def test_type_information_is_shipped(installed: Installed) -> None:
    script = installed.work / "client.py"
    script.write_text(
        "from lpld_labels import PoolReader\nreveal_type(PoolReader('pool').read((0, 3)).labels)\n"
    )
    python = installed.bin / "python"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--python-executable",
            str(python),
            "--follow-imports",
            "silent",
            script,
        ],
        cwd=installed.work,
        capture_output=True,
        text=True,
        check=False,
    )
    # Of a package without py.typed mypy says "Any" and that it found no types.
    assert 'Revealed type is "numpy.ndarray[' in ended.stdout, ended.stdout
