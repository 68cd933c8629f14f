"""Progress where there is no terminal: lines in a log, and silence when asked for."""

from __future__ import annotations

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from lpld_cli.main import group
from lpld_cli.progress import (
    SECONDS_BETWEEN_LINES,
    ProgressLines,
    human_seconds,
    progress_bar,
)
from rich.console import Console

from lpld_labels.exec.job import TaskCounts
from lpld_labels.inspect.check import check_pool
from tests.factories import make_batches, make_images, write_pool


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


def test_work_that_reports_nothing_has_its_lines_too() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("encoding batches", write=lines.append, clock=clock)
    for _ in range(7):
        clock.now += 10
        progress.write_if_due()
    progress(3, 12)
    clock.now += 30
    progress.write_if_due()
    assert lines == [
        "encoding batches: started 30 s ago",
        "encoding batches: started 60 s ago",
        "encoding batches: 3/12 (25 %)",
    ]


def test_encode_has_lines_while_it_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fitting a basis calls nobody back: the clock alone brings the lines."""
    from lpld_labels.codecs.klt_fit import KltFitter

    fit = KltFitter.for_fidelity

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.3)
        return fit(*arguments, **more)

    monkeypatch.setattr(KltFitter, "for_fidelity", slow)
    monkeypatch.setattr("lpld_cli.progress.SECONDS_BETWEEN_LINES", 0.05)
    monkeypatch.setattr("lpld_cli.progress.SECONDS_BETWEEN_TICKS", 0.01)
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    words = ["encode", str(tmp_path / "pool"), str(tmp_path / "out"), "--codec", "klt"]
    result = CliRunner().invoke(group, words)
    assert result.exit_code == 0, result.output
    assert "encoding batches: started 0 s ago" in result.stderr


def test_work_that_is_taken_up_again_does_not_look_fast() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("labelling", write=lines.append, clock=clock)
    progress(900, 1000)
    clock.now += 50
    progress(910, 1000)
    assert lines == ["labelling: 910/1000 (91 %), 0.2/s, 8 min left"]


def test_work_that_is_over_is_silent_while_other_work_goes_on() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("checking images", write=lines.append, clock=clock)
    for done in (0, 50, 100):
        progress(done, 100)
        clock.now += 35
    for _ in range(10):
        clock.now += 30
        progress.write_if_due()
    progress.finish()
    assert lines == [
        "checking images: 50/100 (50 %), 1.43/s, 35 s left",
        "checking images: 100/100 (100 %), 1.43/s, 0 s left",
        "checking images: 100/100, took 70 s",
    ]


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
    assert f"Did you mean '{meant}'?" in result.output


class Terminal(io.StringIO):
    """A terminal that keeps what it is sent."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    stream = Terminal()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("lpld_cli.progress.stderr_console", lambda: console)
    return stream


def test_work_of_no_length_shows_no_bar(terminal: Terminal) -> None:
    with progress_bar("scoring batches"):
        pass
    with progress_bar("scoring batches") as progress:
        progress(0, 0)
    assert "/?" not in terminal.getvalue()
    assert "scoring" not in terminal.getvalue()


def test_long_work_of_unknown_length_shows_that_it_goes_on(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.progress.SECONDS_WITHOUT_TOTAL", 0.0)
    with progress_bar("encoding batches"):
        time.sleep(0.3)
    assert "encoding batches" in terminal.getvalue()
    assert "/?" not in terminal.getvalue()


def test_bars_may_be_nested_and_say_what_is_noted(terminal: Terminal) -> None:
    with progress_bar("checking images") as checking, progress_bar("training steps") as training:
        checking(5, 5)
        training(30, 40)
        training.note("loss 1.25")
        training(40, 40)
    lines = terminal.getvalue().splitlines()
    assert "5/5" in [line for line in lines if "checking images" in line][-1]
    assert re.search(r"40/40 .* loss 1\.25", [line for line in lines if "training steps" in line][-1])


def test_lines_for_people_tell_of_tasks() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("labelling", write=lines.append, clock=clock)
    progress.tasks(TaskCounts(running=1))
    progress(0, 300)
    clock.now += 30
    progress(30, 300)
    progress.tasks(TaskCounts(running=3, done=4, retried=1))
    clock.now += 30
    progress(60, 300)
    assert lines == [
        "labelling: 30/300 (10 %), 1/s, 4 min left",
        "labelling: 60/300 (20 %), 1/s, 4 min left, tasks: 3 running, 4 done, 1 retried",
    ]


def test_lines_for_programs() -> None:
    clock, lines = Clock(), list[str]()
    progress = ProgressLines("labelling", as_json=True, write=lines.append, clock=clock)
    progress(100, 300)
    progress.tasks(TaskCounts(running=2, done=1, retried=1))
    for _ in range(4):
        clock.now += 0.5
        progress(110, 300)
    progress.finish()
    found = [json.loads(line) for line in lines]
    assert [line["finished"] for line in found] == [False, False, False, True]
    assert found[0]["per_second"] is None
    assert found[1] == {
        "progress": "labelling",
        "done": 110,
        "total": 300,
        "per_second": 10.0,
        "seconds_left": 19.0,
        "tasks": {"running": 2, "done": 1, "retried": 1},
        "note": None,
        "finished": False,
    }


def test_a_command_tells_programs_how_far_it_is(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    paths = [str(tmp_path / "pool"), str(tmp_path / "out")]
    words = ["--progress", "json", "encode", *paths, "--codec", "int8", "--json"]
    result = CliRunner().invoke(group, words)
    assert result.exit_code == 0, result.output
    last = json.loads([line for line in result.stderr.splitlines() if line.startswith("{")][-1])
    assert (last["progress"], last["done"], last["total"]) == ("encoding batches", 6, 6)
    assert last["tasks"] == {"running": 0, "done": 1, "retried": 0}
    assert last["finished"]


def test_the_bar_tells_rate_and_tasks(terminal: Terminal) -> None:
    with progress_bar("labelling") as progress:
        progress(10, 40)
        time.sleep(0.05)
        progress(20, 40)
        progress.tasks(TaskCounts(running=3, done=4))
    last = [line for line in terminal.getvalue().splitlines() if "labelling" in line][-1]
    assert re.search(r"20/40 +[\d.e+]+/s .*tasks: 3 running, 4 done", last)


def test_the_bar_of_verify_ends_at_the_end(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(2, 3), images=make_images(500)).close()
    calls: list[tuple[int, int]] = []
    assert check_pool(tmp_path / "pool", progress=lambda done, total: calls.append((done, total))).whole
    assert calls[-1][0] == calls[-1][1]
    assert len(calls) == 4, "once for each file but the manifest"
    (tmp_path / "pool" / "images.parquet").write_bytes(b"damaged")
    check_pool(tmp_path / "pool", progress=lambda done, total: calls.append((done, total)))
    assert calls[-1][0] == calls[-1][1]


def test_quiet_commands_print_errors_only(tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    paths = [str(tmp_path / "pool"), str(tmp_path / "out")]
    for _ in range(2):
        result = CliRunner().invoke(group, ["-q", "prune", *paths, "--ratio", "2"])
        assert result.exit_code == 0
        assert result.stderr == ""
    assert "finished before" in CliRunner().invoke(group, ["prune", *paths, "--ratio", "2"]).stderr
