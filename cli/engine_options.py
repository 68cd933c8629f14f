"""Options that say who does the work: processes of this machine, or a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import click

from .common_options import Decorator, together
from .parameters import TEXT, NumberRange

if TYPE_CHECKING:
    from lpld_labels.exec.job import Engine


def engine_options(what: str = "Processes", *, gpus: bool = True) -> Decorator[Any]:
    """Add -j, --engine and what belongs to it. gpus: whether tasks may want any."""
    options = [
        click.option(
            "-j",
            "--jobs",
            type=click.IntRange(1),
            help=f"{what} [default: 1; with ray, as many as there is room for].",
        ),
        click.option(
            "--engine",
            type=click.Choice(["local", "ray"]),
            default="local",
            show_default=True,
            help="Who does the work: processes of this machine, or a Ray cluster. All workers need the same "
            "paths: a shared disk.",
        ),
        click.option(
            "--ray-address",
            type=TEXT,
            metavar="HOST:PORT",
            help="Head of the cluster [default: Ray started here].",
        ),
        click.option("--cpus-per-task", type=NumberRange(0), help="CPUs a Ray worker holds [default: 1]."),
    ]
    if gpus:
        options.append(
            click.option("--gpus-per-task", type=NumberRange(0), help="GPUs a Ray worker holds [default: 0].")
        )
    return together(*options)


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """What the command line said about who does the work."""

    engine: str = "local"
    jobs: int | None = None
    ray_address: str | None = None
    cpus_per_task: float | None = None
    gpus_per_task: float | None = None

    @staticmethod
    def taken_from(given: dict[str, Any]) -> EngineOptions:
        """Take these options out of what click hands over."""
        names = {entry.name for entry in fields(EngineOptions)}
        options = EngineOptions(**{name: given.pop(name) for name in names & given.keys()})
        if options.engine == "local":
            for name in ("ray_address", "cpus_per_task", "gpus_per_task"):
                if getattr(options, name) is not None:
                    raise click.UsageError(f"--{name.replace('_', '-')} goes with --engine ray")
        return options

    def require_shared(self, out: str) -> None:
        """Refuse an address if workers of other machines have no place to gather a pool for it."""
        from lpld_labels.io.addresses import is_address
        from lpld_labels.io.disk_cache import CACHE_VARIABLE

        if self.engine == "ray" and is_address(out) and not os.environ.get(CACHE_VARIABLE):
            raise click.UsageError(
                "workers of a cluster gather a pool in a directory that all share, and send it from there: "
                f"name one by ${CACHE_VARIABLE}, or write to a shared directory and use 'lpld-labels copy'"
            )

    @property
    def threads(self) -> int | None:
        """CPU threads of a worker that holds some CPUs; None where the machine's are shared out."""
        return None if self.engine == "local" else max(1, int(self.cpus_per_task or 1))

    @contextlib.contextmanager
    def opened(self) -> Iterator[Engine]:
        """Give the engine; what it has started goes afterwards."""
        if self.engine == "local":
            from lpld_labels.exec.local import LocalEngine

            yield LocalEngine(self.jobs or 1)
            return
        from lpld_labels.exec.ray_engine import RayEngine
        from lpld_labels.exec.ray_session import RaySettings

        settings = RaySettings(
            address=self.ray_address,
            workers=self.jobs,
            gpus_per_task=self.gpus_per_task or 0.0,
            cpus_per_task=1.0 if self.cpus_per_task is None else self.cpus_per_task,
        )
        with RayEngine(settings) as engine:
            yield engine
