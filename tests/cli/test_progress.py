import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from lpld_cli.progress import SECONDS_BETWEEN_LINES, ProgressLines, progress_bar
from rich.console import Console

from lpld_labels.exec.job import TaskCounts
from tests.cli.build_runs import Cli, passed


class Log:
    """Lines of progress, and the clock that they follow."""

    def __init__(self, what: str = "labelling", *, as_json: bool = False) -> None:
        self.now = 100.0
        self.lines: list[str] = []
        self.progress = ProgressLines(what, as_json=as_json, write=self.lines.append, clock=lambda: self.now)


def test_a_line_comes_every_half_minute_with_rate_and_time_left() -> None:
    log = Log()
    for step in range(1, 10):
        log.now += 10
        log.progress(10 * step, 300)
        if step == 5:
            log.progress.tasks(TaskCounts(running=3, done=4, retried=1))
    log.progress.finish()
    assert SECONDS_BETWEEN_LINES == 30
    tasks = ", tasks: 3 running, 4 done, 1 retried"
    assert log.lines == [
        "labelling: 30/300 (10 %), 0.667/s, 7 min left",
        f"labelling: 60/300 (20 %), 0.833/s, 5 min left{tasks}",
        f"labelling: 90/300 (30 %), 0.889/s, 4 min left{tasks}",
        f"labelling: 90/300, took 2 min{tasks}",
    ]


def test_work_that_reports_nothing_has_its_lines_too() -> None:
    log = Log("encoding batches")
    for _ in range(7):
        log.now += 10
        log.progress.write_if_due()
    log.progress(3, 12)
    log.now += 30
    log.progress.write_if_due()
    assert log.lines == [
        "encoding batches: started 30 s ago",
        "encoding batches: started 60 s ago",
        "encoding batches: 3/12 (25 %)",
    ]


def test_resumed_work_does_not_look_fast() -> None:
    log = Log()
    log.progress(900, 1000)
    log.now += 50
    log.progress(910, 1000)
    assert log.lines == ["labelling: 910/1000 (91 %), 0.2/s, 8 min left"]


def test_finished_work_is_silent_while_other_work_continues() -> None:
    log = Log("checking images")
    for done in (0, 50, 100):
        log.progress(done, 100)
        log.now += 35
    for _ in range(10):
        log.now += 30
        log.progress.write_if_due()
    log.progress.finish()
    assert log.lines == [
        "checking images: 50/100 (50 %), 1.43/s, 35 s left",
        "checking images: 100/100 (100 %), 1.43/s, 0 s left",
        "checking images: 100/100, took 70 s",
    ]


def test_short_work_says_nothing() -> None:
    log = Log()
    log.now += 20
    log.progress(5, 5)
    log.progress.finish()
    assert log.lines == []


def test_lines_for_programs() -> None:
    log = Log(as_json=True)
    log.progress(100, 300)
    log.progress.tasks(TaskCounts(running=2, done=1, retried=1))
    for _ in range(4):
        log.now += 0.5
        log.progress(110, 300)
    log.progress.finish()
    found = [json.loads(line) for line in log.lines]
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


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal of 100 columns is sent."""
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("lpld_cli.progress.stderr_console", lambda: console)
    return stream


def test_work_of_unknown_length_shows_a_bar_if_it_is_long(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress_bar("scoring batches"):
        pass
    with progress_bar("scoring batches") as progress:
        progress(0, 0)
    assert "scoring" not in terminal.getvalue()
    monkeypatch.setattr("lpld_labels.progress.SECONDS_WITHOUT_TOTAL", 0.0)
    with progress_bar("encoding batches"):
        time.sleep(0.3)
    assert "encoding batches" in terminal.getvalue()
    assert "/?" not in terminal.getvalue()


def test_bars_may_be_nested_and_say_what_is_noted(terminal: io.StringIO) -> None:
    with progress_bar("checking images") as checking, progress_bar("training steps") as training:
        checking(5, 5)
        training(30, 40)
        training.note("loss 1.25")
        training(40, 40)
    lines = terminal.getvalue().splitlines()
    assert "5/5" in [line for line in lines if "checking images" in line][-1]
    assert re.search(r"40/40 .* loss 1\.25", [line for line in lines if "training steps" in line][-1])


def test_the_bar_tells_rate_and_tasks(terminal: io.StringIO) -> None:
    with progress_bar("labelling") as progress:
        progress(10, 40)
        time.sleep(0.05)
        progress(20, 40)
        progress.tasks(TaskCounts(running=3, done=4))
    last = [line for line in terminal.getvalue().splitlines() if "labelling" in line][-1]
    assert re.search(r"20/40 +[\d.e+]+/s .*tasks: 3 running, 4 done", last)


def test_encode_has_lines_while_it_fits(
    cli: Cli, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fitting a basis calls nobody back: the clock alone brings the lines."""
    from lpld_labels.codecs.klt_fit import KltFitter

    fit = KltFitter.for_fidelity

    def slow(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.3)
        return fit(*arguments, **more)

    monkeypatch.setattr(KltFitter, "for_fidelity", slow)
    monkeypatch.setattr("lpld_cli.progress.SECONDS_BETWEEN_LINES", 0.05)
    monkeypatch.setattr("lpld_cli.progress.SECONDS_BETWEEN_TICKS", 0.01)
    result = passed(cli("encode", pool, tmp_path / "out", "--codec", "klt", "--fidelity", 0.5))
    assert "encoding batches: started 0 s ago" in result.stderr


def test_a_command_tells_programs_how_far_it_is(cli: Cli, pool: Path, tmp_path: Path) -> None:
    words = ("encode", pool, tmp_path / "out", "--codec", "int8", "--json")
    result = passed(cli("--progress", "json", *words))
    last = json.loads([line for line in result.stderr.splitlines() if line.startswith("{")][-1])
    assert (last["progress"], last["done"], last["total"]) == ("encoding batches", 20, 20)
    assert last["tasks"] == {"running": 0, "done": 1, "retried": 0}
    assert last["finished"]


def test_quiet_commands_print_errors_only(cli: Cli, pool: Path, tmp_path: Path) -> None:
    words = ("prune", pool, tmp_path / "out", "--ratio", "2")
    for _ in range(2):
        assert passed(cli("-q", *words)).stderr == ""
    assert "finished before" in passed(cli(*words)).stderr
