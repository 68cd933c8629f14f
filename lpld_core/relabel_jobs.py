"""One pool, several processes: each labels its share, then one commit publishes the whole."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from lpld_core.ensemble import TeacherChoice, load_ensemble
from lpld_core.relabel import LabelJob, Progress, build_pool
from lpld_labels.errors import LabelPoolError, WorkerDiedError
from lpld_labels.images import ImageTable

if TYPE_CHECKING:
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Event

    Message = tuple[int, tuple[int, int] | LabelPoolError]
    """(part, (batches done, batches to do)) or (part, the error that ended it)."""

POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What each process uses: device, autocast, torch threads, threads that prepare pixels."""

    device: str = "cpu"
    amp: bool = False
    threads: int = 1
    workers: int = 1

    def device_of(self, part: int) -> str:
        """Spread processes over the GPUs of this machine; other devices are shared."""
        if self.device == "cuda":
            return f"cuda:{part % torch.cuda.device_count()}"
        return self.device


def label_in_processes(
    job: LabelJob,
    teachers: Sequence[TeacherChoice],
    images: ImageTable,
    *,
    classes: int | None,
    jobs: int,
    machine: Machine,
    progress: Progress | None = None,
) -> None:
    """Label with `jobs` processes and wait for them; a call of `build_pool` then publishes.

    If a process fails, the others finish the batch in hand and seal their work before its error is
    raised; the same holds for Ctrl-C.
    """
    context = multiprocessing.get_context("spawn")
    messages: Queue[Message] = context.Queue()
    stop = context.Event()
    processes = [
        context.Process(
            target=_run_part,
            args=(job, tuple(teachers), images, classes, (part, jobs), machine, messages, stop),
            name=f"part {part} of {jobs}",
        )
        for part in range(jobs)
    ]
    for process in processes:
        process.start()
    done: dict[int, tuple[int, int]] = {}
    failure: LabelPoolError | None = None
    try:
        while failure is None and any(process.is_alive() for process in processes):
            failure = _listen(messages, done)
            if progress is not None and len(done) == jobs:
                progress(sum(d for d, _ in done.values()), sum(total for _, total in done.values()))
            failure = failure or _death(processes, job)
    finally:
        stop.set()
        for process in processes:
            process.join()
    while failure is None and not messages.empty():
        failure = _listen(messages, done)
    failure = failure or _death(processes, job)
    if failure is not None:
        raise failure


def _listen(messages: Queue[Message], done: dict[int, tuple[int, int]]) -> LabelPoolError | None:
    """Take in one message, if one comes in time; return the error it carries."""
    try:
        part, news = messages.get(timeout=POLL_SECONDS)
    except queue.Empty:
        return None
    if isinstance(news, LabelPoolError):
        return news
    done[part] = news
    return None


def _death(processes: Sequence[multiprocessing.process.BaseProcess], job: LabelJob) -> LabelPoolError | None:
    for process in processes:
        if process.exitcode not in (None, 0):
            return WorkerDiedError(
                f"the process for {process.name} died (exit code {process.exitcode})",
                where=job.pool,
                hint="finished batches are kept; run the same command again",
            )
    return None


def _run_part(
    job: LabelJob,
    teachers: Sequence[TeacherChoice],
    images: ImageTable,
    classes: int | None,
    part: tuple[int, int],
    machine: Machine,
    messages: Queue[Message],
    stop: Event,
) -> None:
    """Label one share. The parent hears Ctrl-C; this process ends when it says so, or when it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def report(done: int, total: int) -> None:
        messages.put((part[0], (done, total)))
        if stop.is_set() or os.getppid() != parent:
            raise KeyboardInterrupt

    try:
        torch.set_num_threads(machine.threads)
        ensemble = load_ensemble(
            teachers, classes=classes, device=machine.device_of(part[0]), amp=machine.amp
        )
        build_pool(job, ensemble, images, part=part, publish=False, workers=machine.workers, progress=report)
    except LabelPoolError as error:
        messages.put((part[0], error))
    except KeyboardInterrupt:
        return
