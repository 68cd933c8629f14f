import dataclasses
import functools
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from lpld_labels.errors import ClusterError, InvalidArgumentError, WorkerDiedError
from lpld_labels.exec.job import Job, Steps, TaskCounts
from lpld_labels.exec.ray import RayExecutor, RaySettings
from tests.engines.ray_cluster import WHOLE, TwoNodes
from tests.lpld_labels.exec.test_local import Watcher


@dataclasses.dataclass(frozen=True)
class Slow:
    """Leaves a file per task, in steps of a fiftieth of a second; some tasks end badly."""

    folder: Path

    def do(self, task: int, *, again: bool) -> Steps:
        (self.folder / f"began {task} {'again ' if again else ''}by {os.getpid()}").touch()
        if task == -1:
            os.kill(os.getpid(), signal.SIGKILL)
        if task == -2:
            time.sleep(0.5)
            raise InvalidArgumentError("no such task", where=self.folder / "file", got=task)
        try:
            for _ in range(5 if task >= 0 else 10_000):
                time.sleep(0.02)
                yield 1
        except GeneratorExit:
            (self.folder / "stopped").touch()
            raise
        (self.folder / f"{task}").touch()
        return task


def start(folder: Path, number: int) -> Slow:
    (folder / f"set up {os.getpid()}").touch()
    return Slow(folder)


def job(folder: Path, tasks: Iterable[int], total: int) -> Job[int]:
    return Job(
        start=functools.partial(start, folder),
        tasks=tasks,
        name=lambda task: f"task {task}",
        total=total,
        done=0,
        where=folder,
    )


def settings(cluster: TwoNodes, workers: int) -> RaySettings:
    return RaySettings(address=cluster.address, workers=workers)


def test_every_task_is_done_once_and_workers_are_set_up_once(cluster: TwoNodes, tmp_path: Path) -> None:
    seen = Watcher()
    with RayExecutor(settings(cluster, 3)) as engine:
        assert engine.workers == 3
        facts = engine.run(job(tmp_path, iter(range(30)), 150), seen)
    assert sorted(facts) == list(range(30))
    assert len(list(tmp_path.glob("began*"))) == 30
    assert len(list(tmp_path.glob("set up*"))) == 3
    assert seen.units[-1] == (150, 150)
    assert seen.counts[-1] == TaskCounts(running=0, done=30, retried=0)
    assert 1 <= max(counts.running for counts in seen.counts) <= 3


def test_a_task_that_fails_is_named_and_the_others_stop_gently(cluster: TwoNodes, tmp_path: Path) -> None:
    with (
        RayExecutor(settings(cluster, 2)) as engine,
        pytest.raises(InvalidArgumentError, match=r"file: no such task, in task -2 \(got -2\)"),
    ):
        engine.run(job(tmp_path, [-3, -2], 10))
    assert (tmp_path / "stopped").exists()


def test_a_task_that_kills_every_worker_is_given_up(
    cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.exec.ray.MOST_LOSSES", 2)
    message = "2 workers died, in task -1; finished work is kept"
    with RayExecutor(settings(cluster, 2)) as engine, pytest.raises(WorkerDiedError, match=message):
        engine.run(job(tmp_path, [1, -1], 10))
    assert (tmp_path / "1").exists()


@pytest.mark.skipif(not WHOLE, reason="starts a Ray of its own: make engines")
def test_workers_that_ray_ends_for_want_of_memory_are_lost_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.exec.ray.MOST_LOSSES", 2)
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    monkeypatch.setenv("RAY_memory_usage_threshold", "0.001")
    with (
        RayExecutor(RaySettings(workers=1)) as engine,
        pytest.raises(WorkerDiedError, match=r"died.*if memory ran out"),
    ):
        engine.run(job(tmp_path, [-3], 10))


def test_what_ray_prints_is_no_data(cluster: TwoNodes, capsys: pytest.CaptureFixture[str]) -> None:
    with RayExecutor(settings(cluster, 1)):
        sys.stdout.write("a node has died\n")
    assert capsys.readouterr() == ("", "a node has died\n")


def test_a_cluster_without_room(cluster: TwoNodes) -> None:
    asked = RaySettings(address=cluster.address, gpus_per_task=1)
    with (
        RayExecutor(asked) as engine,
        pytest.raises(ClusterError, match=r"resources for a task \(expected 1 CPU, 1 GPU, got 3 CPU"),
    ):
        engine.run(job(Path(), [1], 1))


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: cannot connect to a Ray cluster: .*refused"),
        ("head", "not the address of a Ray cluster .*got head"),
        ("ray://head:10001", "cannot connect to a Ray cluster"),
    ],
)
def test_an_address_where_nothing_listens(address: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        RayExecutor(RaySettings(address=address))
