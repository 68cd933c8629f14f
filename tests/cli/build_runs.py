"""What tests of commands share: a teacher, settings, and checks of results."""

import json
from collections.abc import Callable
from typing import Any

from click.testing import Result

from tests.lpld_core.image_folders import NETWORK, SIDE

Cli = Callable[..., Result]
TEACHER = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)
TINY = ("--teacher", "tests.lpld_core.networks:tiny_net", "--teacher-weights", "random", "--size", 8)


def passed(result: Result) -> Result:
    assert result.exit_code == 0, result.output
    return result


def facts(result: Result) -> dict[str, Any]:
    """Return what a command with --json printed."""
    found: dict[str, Any] = json.loads(passed(result).stdout)
    return found


def words_of(text: str) -> str:
    """Return a table's words without its lines."""
    return " ".join(text.replace("│", " ").split())


def one_line_error(result: Result, *words: str, code: int = 1) -> None:
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    if code == 1:
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[-1]
