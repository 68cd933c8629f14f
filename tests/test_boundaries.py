"""What may import what: layers are contracts of import-linter in pyproject.toml, also run by `make lint`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lpld_labels

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = {"lpld_labels": "lpld_labels", "lpld_core": "lpld_core", "cli": "lpld_cli"}
TORCH_ROOMS = ("lpld_core/", "lpld_labels/render/", "lpld_labels/loader/")
FILES = sorted(path for room in ROOMS for path in (PROJECT / room).rglob("*.py"))


def test_rooms_import_only_lower_rooms() -> None:
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_torch_is_imported_only_where_it_is_needed() -> None:
    """Contracts know no difference between imports of a module and of a function."""
    heavy = re.compile(r"^(?:import|from) (?:torch|torchvision|timm)\b", re.MULTILINE)
    found = {path.relative_to(PROJECT).as_posix() for path in FILES if heavy.search(path.read_text())}
    assert not {place for place in found if not place.startswith(TORCH_ROOMS)}


def test_the_public_names_are_where_they_are_said_to_be() -> None:
    assert set(lpld_labels.__all__) == {name for names in lpld_labels._LAZY.values() for name in names}
    for name in lpld_labels.__all__:
        assert getattr(lpld_labels, name) is not None


def test_every_package_is_installed() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no TOML parser")
    declared = set(tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    found = {
        ".".join((ROOMS[room], *path.parent.relative_to(PROJECT / room).parts))
        for room in ROOMS
        for path in (PROJECT / room).rglob("__init__.py")
    }
    assert declared == found


def test_files_stay_readable_in_one_sitting() -> None:
    long = {str(p.relative_to(PROJECT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 600}
    assert not long
