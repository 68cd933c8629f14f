"""Progress where there is no terminal: lines in a log, and silence when asked for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from lpld_cli.main import group
from lpld_cli.progress import SECONDS_BETWEEN_LINES, ProgressLines, human_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_comes_every_half_minute_with_rate_and_time_left() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("labelling", write=lines.append, clock=clock)
    for step in range(1, 10):
        clock.now += 10
        progress(10 * step, 300)
    progress.finish()
    assert SECONDS_BETWEEN_LINES == 30
    assert lines == [
        "labelling: 30/300 (10 %), 0.667/s, 7 min left",
        "labelling: 60/300 (20 %), 0.833/s, 5 min left",
        "labelling: 90/300 (30 %), 0.889/s, 4 min left",
        "labelling: 90/300, took 2 min",
    ]


def test_work_that_is_taken_up_again_does_not_look_fast() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("labelling", write=lines.append, clock=clock)
    progress(900, 1000)
    clock.now += 50
    progress(910, 1000)
    assert lines == ["labelling: 910/1000 (91 %), 0.2/s, 8 min left"]


def test_short_work_says_nothing() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("copying", write=lines.append, clock=clock)
    clock.now += 20
    progress(5, 5)
    progress.finish()
    assert lines == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (90, "2 min"), (5399, "1 h 30 min"), (7500, "2 h 05 min")],
)
def test_times_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


@pytest.mark.parametrize(
    ("wrong", "meant"), [("prnue", "prune"), ("inspct", "inspect"), ("squeze", "squeeze")]
)
def test_a_command_that_is_nearly_one_is_answered_with_it(wrong: str, meant: str) -> None:
    result = CliRunner().invoke(group, [wrong, "pool"])
    assert result.exit_code == 2
    assert f"Did you mean {meant}?" in result.output
