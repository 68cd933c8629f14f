"""What lives in a Ray worker: a job's worker, set up once, and a line to it while it works.

The driver makes an actor of the class. Two threads call it, one at a time each: `work` sets up and does
tasks, `control` asks how far they are.
"""

from __future__ import annotations

import os
from typing import Any

from lpld_labels.errors import ClusterError, LabelPoolError
from lpld_labels.exec.job import Outcome, Worker, carry_out


class Host:
    """One worker of a job.

    start: a list with Ray's reference to what sets the worker up; in a list, Ray leaves it alone until it is
    asked for. directory: where the command was given, for its paths may be relative.
    """

    def __init__(self, start: list[Any], directory: str) -> None:
        self._start = start
        self._directory = directory
        self._worker: Worker[Any] | None = None
        self._units = 0
        self._stop = False

    def set_up(self) -> LabelPoolError | None:
        """Load what tasks share. Errors for people are given back as they are, not as Ray's."""
        import ray

        try:
            os.chdir(self._directory)
        except OSError as error:
            return ClusterError(
                f"a worker cannot go to the directory the command was given in: {error.strerror}",
                where=self._directory,
                hint="all machines of the cluster need the same paths: use a shared disk",
            )
        try:
            # Only now: unpickling it may open files.
            (start,) = ray.get(self._start)
            # Ray shows a worker only the GPUs that are its own.
            self._worker = start(0)
        except LabelPoolError as error:
            return error
        except ray.exceptions.RayError as error:
            # It could not be unpickled: what is missing here is told by the cause.
            cause = error.__cause__ or error
            return cause if isinstance(cause, LabelPoolError) else _not_set_up(cause)
        return None

    def do(self, task: Any, again: bool) -> Outcome | LabelPoolError | None:
        """Do a task; None if it was stopped."""
        if self._worker is None:
            raise RuntimeError("a worker is set up before its first task")
        self._units = 0
        try:
            return carry_out(self._worker.do(task, again=again), self._tell)
        except LabelPoolError as error:
            return error

    def _tell(self, units: int) -> bool:
        self._units = units
        return not self._stop

    def reached(self) -> int:
        """Return how many units of the present task are finished."""
        return self._units

    def stop(self) -> None:
        """End the present task with what it has in hand."""
        self._stop = True


def _not_set_up(error: BaseException) -> ClusterError:
    return ClusterError(
        f"a worker cannot be set up: {error}".partition("\n")[0],
        hint="all machines of the cluster need the same versions and the same paths",
    )
