import dataclasses
import functools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest

from lpld_labels.errors import InvalidArgumentError, WorkerDiedError
from lpld_labels.exec.job import Job, Steps, TaskCounts
from lpld_labels.exec.local import LocalExecutor


@dataclasses.dataclass(frozen=True)
class Noter:
    """Leaves a file per task; some tasks end badly."""

    folder: Path

    def do(self, task: int, *, again: bool) -> Steps:
        assert not again
        while task in (-1, -2, -4) and not (self.folder / "begun").exists():
            time.sleep(0.01)  # until there is a task that can be stopped: a worker may be slow to start
        if task == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        if task == -2:
            raise InvalidArgumentError("no such task", got=str(task))
        if task == -3:
            (self.folder / "begun").touch()
            try:
                while True:
                    yield 0
                    time.sleep(0.01)
            finally:
                (self.folder / "stopped").touch()
        if task == -4:
            raise EOFError("the task's own, not the line's")
        (self.folder / f"{task} by {os.getpid()}").touch()
        yield 1
        return task


def start(folder: Path, ballast: bytes, number: int) -> Noter:
    return Noter(folder)


def job(folder: Path, tasks: Iterable[int], ballast: int = 0) -> Job[int]:
    return Job(
        start=functools.partial(start, folder, bytes(ballast)),
        tasks=tasks,
        name=lambda task: f"task {task}",
        total=50,
        done=0,
        where=folder,
    )


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_task_is_done_once(tmp_path: Path, jobs: int) -> None:
    seen = Watcher()
    facts = LocalExecutor(jobs).run(job(tmp_path, iter(range(50))), seen)
    found = sorted(int(path.name.split()[0]) for path in tmp_path.iterdir())
    assert found == sorted(facts) == list(range(50))
    assert seen.units[-1] == (50, 50)
    assert seen.counts[-1] == TaskCounts(running=0, done=50)
    assert 1 <= max(counts.running for counts in seen.counts) <= jobs
    assert multiprocessing.active_children() == []


class Watcher:
    def __init__(self) -> None:
        self.units: list[tuple[int, int]] = []
        self.counts: list[TaskCounts] = []

    def __call__(self, done: int, total: int) -> None:
        self.units.append((done, total))

    def tasks(self, counts: TaskCounts) -> None:
        self.counts.append(counts)


@pytest.mark.parametrize(
    ("last", "error", "message"),
    [
        (-1, WorkerDiedError, r"died \(exit code -9\), in task -1; .*run the same command again"),
        (-2, InvalidArgumentError, r"no such task, in task -2 \(got -2\)"),
        (-4, EOFError, "the task's own"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_failed_task_stops_others(tmp_path: Path, last: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        LocalExecutor(2).run(job(tmp_path, [1, -3, last]))
    assert (tmp_path / "stopped").exists()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(("wait", "ballast"), [(0, 0), (0, 300_000), (0.1, 300_000)])
def test_killed_while_others_are_being_started(tmp_path: Path, wait: float, ballast: int) -> None:
    def kill() -> None:
        while not (children := multiprocessing.active_children()):
            pass
        time.sleep(wait)
        children[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(WorkerDiedError, match="exit code -9"):
        LocalExecutor(3).run(job(tmp_path, [-3] * 3, ballast))
    killer.join()
    assert multiprocessing.active_children() == []


PRESSED = """
import sys
from pathlib import Path
from lpld_labels.exec.local import LocalExecutor
from tests.lpld_labels.exec.test_local import job
if __name__ == "__main__":
    def say(done, total):
        print(done, flush=True)
    try:
        LocalExecutor(2).run(job(Path(sys.argv[1]), [0, -3, -3]), say)
    except KeyboardInterrupt:
        sys.exit(7)
"""


@pytest.mark.parametrize("moment", ["workers start", "workers work"])
def test_only_the_parent_hears_ctrl_c_at_the_terminal(tmp_path: Path, project: Path, moment: str) -> None:
    """The terminal sends it to every process, also to those that are just being started."""
    command = [sys.executable, "-c", PRESSED, str(tmp_path)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=project, start_new_session=True, **pipes) as process:
        try:
            if moment == "workers work":
                assert process.stdout is not None
                process.stdout.readline()
            while len(psutil.Process(process.pid).children()) < 2:
                assert process.poll() is None
            os.killpg(process.pid, signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert stderr == ""
    assert process.returncode == 7


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_of_the_progress_callback_stops_the_work(tmp_path: Path, jobs: int) -> None:
    def press(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LocalExecutor(jobs).run(job(tmp_path, [0, 1, -3, -3][2 - jobs :]), press)
