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
LAYERS: dict[str, tuple[set[str], ...]] = {
    "lpld_labels": (
        {"version", "errors"},
        {"settings"},
        {"format", "exec"},
        {"io"},
        {"codecs"},
        {"pool"},
        {"render"},
        {"transforms"},
        {"interop"},
        {"loader", "inspect"},
    ),
    "lpld_core": (
        {"settings", "networks", "digits"},
        {"teachers", "unfinished"},
        {"images"},
        {"squeeze"},
        {"recover", "relabel", "analysis"},
        {"image_pages"},
        {"train"},
    ),
}
"""Rooms and single modules of a package, lowest layer first. Those of one layer do not know each other."""
TORCH_ROOMS = ("lpld_core/", "lpld_labels/render/", "lpld_labels/loader/")
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


def _room(package: str, module: str) -> str | None:
    """Return the room of a module of a package; None for the package itself and for other packages."""
    parts = module.split(".")
    return parts[1] if parts[0] == package and len(parts) > 1 else None


def _rooms_imported(path: Path, package: str) -> set[str]:
    """Return the rooms of its own package that a file imports, wherever in the file."""
    found: set[str | None] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {_room(package, alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                place = path.relative_to(PROJECT).with_suffix("").parts[: -node.level]
                base = ".".join([*place, *filter(None, [node.module])])
            # `from package import room` names the room only here.
            found |= {_room(package, base) or _room(package, f"{base}.{alias.name}") for alias in node.names}
    return {room for room in found if room is not None}


def upward_imports(path: Path, package: str) -> set[str]:
    """Return the rooms a file imports though they are neither its own nor in a lower layer."""
    height = {room: number for number, layer in enumerate(LAYERS[package]) for room in layer}
    own = path.relative_to(PROJECT / package).with_suffix("").parts[0]
    return {room for room in _rooms_imported(path, package) if room != own and height[room] >= height[own]}


LAYERED = [path for path in FILES if path.relative_to(PROJECT).parts[0] in LAYERS]


@pytest.mark.parametrize("path", LAYERED, ids=lambda p: str(p.relative_to(PROJECT)))
def test_rooms_import_only_lower_rooms(path: Path) -> None:
    package, *rest = path.relative_to(PROJECT).parts
    if rest != ["__init__.py"]:
        assert not upward_imports(path, package)


@pytest.mark.parametrize("package", LAYERS)
def test_every_room_has_its_layer(package: str) -> None:
    entries = (PROJECT / package).iterdir()
    rooms = {p.stem for p in entries if p.suffix == ".py" or (p.is_dir() and (p / "__init__.py").exists())}
    layers = LAYERS[package]
    assert set().union(*layers) == rooms - {"__init__"}
    assert sum(map(len, layers)) == len(set().union(*layers))


@pytest.mark.parametrize(
    "line",
    [
        "from lpld_core.train.evaluate import ValidationSet",
        "from lpld_core import train",
        "from lpld_core.recover.optimise import show as s",
        "    import lpld_core.relabel.build",
        "from .train import evaluate",
        "from . import train",
    ],
)
def test_an_upward_import_is_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lpld_core" / "images.py"
    path.parent.mkdir(parents=True)
    path.write_text(f"if True:\n    import lpld_core.networks.models\n    {line.strip()}\n")
    monkeypatch.setitem(globals(), "PROJECT", tmp_path)
    assert len(upward_imports(path, "lpld_core")) == 1


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PROJECT)))
def test_torch_is_imported_only_where_it_is_needed(path: Path) -> None:
    place = path.relative_to(PROJECT).as_posix()
    names = {name.split(".")[0] for name in imports(path, top_level=True)}
    if not place.startswith(TORCH_ROOMS):
        assert not names & {"torch", "torchvision", "timm"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PROJECT)))
def test_pools_are_never_pickled(path: Path) -> None:
    if path.is_relative_to(PROJECT / "lpld_labels"):
        allowed = {"pickle", "pickletools"} if path.name == "torch_file.py" else set()
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
    long = {str(p.relative_to(PROJECT)): n for p in FILES if (n := len(p.read_text().splitlines())) > 600}
    assert not long
