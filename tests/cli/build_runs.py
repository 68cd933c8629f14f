"""What tests of build share: a teacher, settings, and what an error looks like."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import Result

from tests.lpld_core.image_folders import NETWORK, SIDE

Cli = Callable[..., Result]
TEACHER = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)
SETTINGS = ("--preset", "tiny", "--epochs", 40, "--batch-size", 5, "--seed", 3)


def one_line_error(result: Result, *words: str, code: int = 1) -> None:
    assert result.exit_code == code, result.output
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    if code == 1:
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[-1]
