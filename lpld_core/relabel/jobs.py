"""One pool, several processes: each labels its share, then one commit publishes the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from lpld_core.part import Part
from lpld_core.relabel.build import LabelJob, Progress, build_pool
from lpld_core.teachers.ensemble import TeacherChoice, load_ensemble
from lpld_labels.format.images import ImageTable
from lpld_labels.processes import Send, work_in_processes


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
    counts: dict[int, tuple[int, int]] = {}

    def on_message(news: tuple[int, int, int]) -> None:
        part, done, total = news
        counts[part] = done, total
        if progress is not None and len(counts) == jobs:
            progress(sum(done for done, _ in counts.values()), sum(total for _, total in counts.values()))

    start = partial(_Labeller, job, tuple(teachers), images, classes, jobs, machine)
    work_in_processes(start, range(jobs), processes=jobs, on_message=on_message, where=job.pool)


@dataclass(frozen=True)
class _Labeller:
    """Lives in a process of its own and labels its parts."""

    job: LabelJob
    teachers: Sequence[TeacherChoice]
    images: ImageTable
    classes: int | None
    jobs: int
    machine: Machine

    def __call__(self, part: int, send: Send) -> None:
        def report(done: int, total: int) -> None:
            if not send((part, done, total)):
                raise _StopError

        machine = self.machine
        torch.set_num_threads(machine.threads)
        ensemble = load_ensemble(
            self.teachers, classes=self.classes, device=machine.device_of(part), amp=machine.amp
        )
        try:
            build_pool(
                self.job,
                ensemble,
                self.images,
                part=Part(number=part + 1, of=self.jobs),
                publish=False,
                workers=machine.workers,
                progress=report,
            )
        except _StopError:
            return


class _StopError(Exception):
    """The parent asks to stop; what is in hand has been sealed."""
