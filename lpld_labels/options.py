"""Arguments that several verbs share: pools to read, outputs to write, and processes to use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from lpld_labels.errors import UsageError
from lpld_labels.io.addresses import Location, is_address
from lpld_labels.progress import ShowProgress
from lpld_labels.settings import Setting

if TYPE_CHECKING:
    from lpld_labels.exec.job import Executor

RAY_HERE = "local"
NewPool = Annotated[Location, Setting("The new pool: a path or an address.", option=False)]


def listed(given: Location | Iterable[Location]) -> list[Location]:
    """Return one or several locations as a list."""
    return [given] if isinstance(given, (str, os.PathLike)) else list(given)


@dataclass(frozen=True, kw_only=True)
class Shows:
    """Base class for the arguments of verbs that report progress."""

    progress: Annotated[
        ShowProgress, Setting("A function of (done, total), or True to draw bars.", option=False)
    ] = None


@dataclass(frozen=True, kw_only=True)
class Writes(Shows):
    """Base class for the arguments of verbs that write an output."""

    overwrite: Annotated[bool, Setting("Replace an existing output that lpld-labels wrote.")] = False


@dataclass(frozen=True)
class FromPool:
    """Base class for the arguments of verbs that read a pool."""

    pool: Annotated[Location, Setting("A pool: a path or an address.", option=False)]


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Options that choose the executor: processes of this machine, or a Ray cluster."""

    jobs: Annotated[
        int | None, Setting("Number of processes.  [default: 1; on Ray, as many as possible]", ge=1)
    ] = None
    ray: Annotated[
        str | None,
        Setting(
            f"Run on a Ray cluster: HOST:PORT of its head, or '{RAY_HERE}' to start Ray here. All workers "
            "need the same paths, on a shared disk."
        ),
    ] = None

    def require_shared(self, out: Location) -> None:
        """Raise if Ray workers are to build a pool for upload to `out` and have no shared directory."""
        from lpld_labels.io.disk_cache import CACHE_VARIABLE

        if self.ray is not None and is_address(out) and not os.environ.get(CACHE_VARIABLE):
            raise UsageError(
                "--ray requires a shared directory in which to write the pool before uploading it: set "
                f"${CACHE_VARIABLE} to one, or choose a local OUT and then use 'lpld-labels copy'"
            )

    def threads_each(self, threads: int | None) -> int:
        """Return the number of CPU threads per worker: as given, else 1 on Ray, else CPUs / processes."""
        if self.ray is not None:
            return threads or 1
        return threads or max(1, (os.cpu_count() or 1) // (self.jobs or 1))

    @contextlib.contextmanager
    def opened(self, *, gpus: float = 0.0, threads: int | None = None) -> Iterator[Executor]:
        """Open the executor. gpus, threads: number of GPUs and of CPU threads per worker."""
        if self.ray is None:
            from lpld_labels.exec.local import LocalExecutor

            yield LocalExecutor(self.jobs or 1)
            return
        from lpld_labels.exec.ray import RayExecutor, RaySettings

        settings = RaySettings(
            address=None if self.ray == RAY_HERE else self.ray,
            workers=self.jobs,
            gpus_per_task=gpus,
            cpus_per_task=float(self.threads_each(threads)),
        )
        with RayExecutor(settings) as executor:
            yield executor
