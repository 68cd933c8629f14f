"""benchmarks/README.md names every claim's command and every result, and all of them exist."""

import re
from pathlib import Path

import pytest

from benchmarks.readme.parts import claim_map

PROJECT = Path(__file__).resolve().parents[2]
PAGE = PROJECT / "benchmarks" / "README.md"
COMMANDS = sorted({command for row in claim_map(PAGE) for command in row.commands})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_started_and_are_tested(command: str) -> None:
    _, _, module, *_ = command.split()
    path = PROJECT / module.replace(".", "/")
    source = (path / "__main__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
    assert 'if __name__ == "__main__":' in source
    for option in re.findall(r"--[a-z-]+", command):
        assert f'"{option}"' in source, option
    (row,) = [row for row in claim_map(PAGE) if command in row.commands]
    assert set(re.findall(r"benchmarks/results/(\S+)", command)) <= set(row.results)
    _, claim, *part = module.split(".")
    assert (PROJECT / "tests" / "benchmarks" / claim / f"test_{part[0] if part else claim}.py").exists()


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
