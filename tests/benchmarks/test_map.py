"""benchmarks/README.md names every claim's command and every result, and all of them exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.readme.parts import claim_map

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "benchmarks" / "README.md"
COMMANDS = sorted({command for row in claim_map(PAGE) for command in row.commands})


def _source(command: str) -> Path:
    module = command.split()[2]
    spec = importlib.util.find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None
    path = Path(spec.origin)
    return path.with_name("__main__.py") if path.name == "__init__.py" else path


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_started(command: str) -> None:
    source = _source(command).read_text()
    assert 'if __name__ == "__main__":' in source
    for option in re.findall(r"--[a-z-]+", command):
        assert f'"{option}"' in source, option


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_write_where_the_map_says(command: str) -> None:
    (row,) = [row for row in claim_map(PAGE) if command in row.commands]
    for path in re.findall(r"benchmarks/results/(\S+)", command):
        assert path in row.results


def test_every_result_is_named_and_exists() -> None:
    named = [name for row in claim_map(PAGE) for name in row.results]
    found = {path.name for path in (PROJECT / "benchmarks" / "results").iterdir() if path.suffix != ".lock"}
    assert sorted(named) == sorted(found)


def test_every_folder_is_on_the_map() -> None:
    """Whatever can be started is started from the map or is the README's own writer."""
    startable = {
        path.parent.name if path.name == "__main__.py" else f"{path.parent.name}.{path.stem}"
        for path in (PROJECT / "benchmarks").glob("*/*.py")
        if '__name__ == "__main__"' in path.read_text()
    }
    modules = set(re.findall(r"python -m benchmarks\.([\w.]+)", PAGE.read_text()))
    assert startable == modules - {"NAME"}


def test_every_claim_has_a_tiny_run_in_the_tests() -> None:
    for command in COMMANDS:
        _, claim, *part = command.split()[2].split(".")
        tests = PROJECT / "tests" / "benchmarks" / claim / f"test_{part[0] if part else claim}.py"
        assert tests.exists(), tests
