"""Every mistake is answered with what to do, and leaves everything as it was."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.cli.mistaken_place import make_place
from tests.cli.mistakes import MISTAKES

Cli = Callable[..., Result]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mistakes")
    make_place(root)
    return root


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of change of everything below a directory, and of the directory itself."""
    found = {path: path.lstat() for path in (root, *root.rglob("*"))}
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


def contents(root: Path) -> dict[str, bytes | None]:
    """Return all files below a directory; None stands for a directory."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in root.rglob("*")}


def test_there_are_many_mistakes_of_all_commands() -> None:
    from lpld_cli.main import LAZY_COMMANDS

    commands = {words.split()[0] for words, _, _ in MISTAKES}
    assert len({words for words, _, _ in MISTAKES}) == len(MISTAKES) >= 120
    assert commands >= set(LAZY_COMMANDS)


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES, ids=[words for words, _, _ in MISTAKES])
def test_mistake(
    cli: Cli, place: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int, message: str
) -> None:
    monkeypatch.chdir(place)
    before, inside = tree(place), contents(place)
    result = cli(*shlex.split(words))
    assert result.exit_code == code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""
    errors = [line for line in result.stderr.splitlines() if line.lower().startswith("error:")]
    assert len(errors) == 1, result.stderr
    assert contents(place) == inside
    # Directories that were made for a moment and went again leave a trace in the time of their parent.
    after = tree(place)
    assert {path: after[path] for path in after if Path(path).is_file()} == {
        path: before[path] for path in before if Path(path).is_file()
    }
