"""Work in several processes: everything is done once, and no death leaves anybody waiting."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from lpld_labels.errors import InvalidArgumentError, WorkerDiedError
from lpld_labels.processes import Do, Send, work_in_processes


def start(folder: Path, ballast: bytes = b"") -> Do[int]:
    return functools.partial(note, folder)


def note(folder: Path, task: int, send: Send) -> None:
    """Leave a file per task; some tasks end badly."""
    if task == -1:
        os.kill(os.getpid(), signal.SIGKILL)
    if task == -2:
        raise InvalidArgumentError("no such task", got=str(task))
    if task == -3:
        # Long, but stops when told.
        while send("still here"):
            time.sleep(0.01)
        (folder / "stopped").touch()
        return
    if task == -4:
        raise EOFError("the task's own, not the line's")
    (folder / f"{task} by {os.getpid()}").touch()
    send(task)


def tasks_done(folder: Path) -> list[int]:
    return sorted(int(path.name.split()[0]) for path in folder.iterdir() if path.name != "stopped")


def test_every_task_is_done_once(tmp_path: Path) -> None:
    news: list[int] = []
    work_in_processes(
        functools.partial(start, tmp_path),
        iter(range(50)),
        processes=3,
        on_message=news.append,
        where=tmp_path,
    )
    assert tasks_done(tmp_path) == sorted(news) == list(range(50))
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        (-1, WorkerDiedError, r"died \(exit code -9\).*run the same command again"),
        (-2, InvalidArgumentError, "no such task"),
        (-4, EOFError, "the task's own"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_bad_end_stops_the_others_gently(
    tmp_path: Path, last: int, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        work_in_processes(
            functools.partial(start, tmp_path),
            [1, -3, last],
            processes=2,
            on_message=lambda news: None,
            where=tmp_path,
        )
    assert (tmp_path / "stopped").exists()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("wait", [0, 0.02, 0.1, 0.3])
@pytest.mark.parametrize("ballast", [0, 300_000])
def test_killed_while_others_are_being_started(tmp_path: Path, wait: float, ballast: int) -> None:
    before = {child.pid for child in multiprocessing.active_children()}

    def kill() -> None:
        while True:
            for child in multiprocessing.active_children():
                if child.pid not in before and child.pid is not None:
                    time.sleep(wait)
                    os.kill(child.pid, signal.SIGKILL)
                    return

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerDiedError, match="exit code -9"):
        work_in_processes(
            functools.partial(start, tmp_path, bytes(ballast)),
            [-3] * 3,
            processes=3,
            on_message=lambda news: None,
            where=tmp_path,
        )
    killer.join()
    assert multiprocessing.active_children() == []


PRESSED = """
import functools, sys
from pathlib import Path
from lpld_labels.processes import work_in_processes
from tests.lpld_labels.test_processes import start
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    say = functools.partial(print, flush=True)
    try:
        first = functools.partial(start, folder)
        work_in_processes(first, [-3, -3], processes=2, on_message=say, where=folder)
    except KeyboardInterrupt:
        sys.exit(7)
"""


@pytest.mark.parametrize("wait", [0.0, 0.05, 0.2, None])
def test_ctrl_c_at_the_terminal_is_heard_by_the_parent_alone(
    tmp_path: Path, project: Path, wait: float | None
) -> None:
    """The terminal sends it to every process, also to those that are just being started."""
    command = [sys.executable, "-c", PRESSED, str(tmp_path)]
    with subprocess.Popen(
        command,
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            if wait is None:
                process.stdout.readline()
            else:
                while len(psutil.Process(process.pid).children()) < 2:
                    assert process.poll() is None
                time.sleep(wait)
            os.killpg(process.pid, signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert stderr == ""
    assert process.returncode == 7


def test_an_error_of_the_listener_stops_the_work(tmp_path: Path) -> None:
    def press(news: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work_in_processes(
            functools.partial(start, tmp_path), [-3, -3], processes=2, on_message=press, where=tmp_path
        )
    assert (tmp_path / "stopped").exists()
