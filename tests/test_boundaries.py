"""The rooms of the house: who may import whom, and who must not import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import lpld_labels

PROJECT = Path(__file__).resolve().parent.parent
ROOMS = {"lpld_labels": "lpld_labels", "lpld_core": "lpld_core", "cli": "lpld_cli"}
MAY_IMPORT = {
    "lpld_labels": {"lpld_labels"},
    "lpld_core": {"lpld_labels", "lpld_core"},
    "cli": {"lpld_labels", "lpld_core", "lpld_cli"},
}
TORCH_ROOMS = ("lpld_core/", "lpld_labels/replay/", "lpld_labels/loader/")
FILES = sorted(path for room in ROOMS for path in (PROJECT / room).rglob("*.py"))


def imports(path: Path, *, top_level: bool = False) -> set[str]:
    """Return the absolute modules a file imports; with `top_level`, only when it is itself imported."""
    tree = ast.parse(path.read_text())
    nodes = list(ast.walk(tree)) if not top_level else _executed_on_import(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


def _executed_on_import(tree: ast.Module) -> list[ast.stmt]:
    return [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PROJECT)))
def test_imports_go_downward(path: Path) -> None:
    room = path.relative_to(PROJECT).parts[0]
    ours = {name.split(".")[0] for name in imports(path)} & (
        set(ROOMS.values()) | {"cli", "tests", "benchmarks"}
    )
    assert ours <= MAY_IMPORT[room]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PROJECT)))
def test_torch_is_imported_only_where_it_is_needed(path: Path) -> None:
    place = path.relative_to(PROJECT).as_posix()
    names = {name.split(".")[0] for name in imports(path, top_level=True)}
    if not place.startswith(TORCH_ROOMS):
        assert not names & {"torch", "torchvision", "timm"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PROJECT)))
def test_pools_are_never_pickled(path: Path) -> None:
    if path.is_relative_to(PROJECT / "lpld_labels"):
        allowed = {"pickle", "pickletools"} if "importers" in path.parts else set()
        assert not (imports(path) & {"pickle", "marshal", "shelve", "dill", "joblib"}) - allowed


def test_the_library_imports_without_torch() -> None:
    code = "import sys, lpld_labels; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_public_names_are_where_they_are_said_to_be() -> None:
    assert set(lpld_labels.__all__) == set(lpld_labels._HOMES)
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
    long = {str(p.relative_to(PROJECT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 350}
    assert not long
