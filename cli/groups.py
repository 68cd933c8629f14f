"""Options that several commands share: teachers, devices, and who does the work."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import click

from lpld_core.settings import DEFAULT_WEIGHTS, TeacherChoice
from lpld_labels.settings import Setting

if TYPE_CHECKING:
    from lpld_core.teachers.teacher import LoadedTeacher, Machine
    from lpld_labels.exec.job import Executor

_NETWORKS = "resnet18, timm:NAME, small-resnet18:width=32 or package.module:factory."
_WEIGHTS = "DEFAULT, random, or a safetensors or torch file"
_NORMALISATION = "Normalisation, where the weights do not say."
_THREADS = "CPU threads per process.  [default: all, shared out]"


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where torch computes."""

    device: Annotated[str, Setting("cpu, cuda, cuda:1, mps ...")] = "cpu"
    threads: Annotated[int | None, Setting(_THREADS, ge=1)] = None


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(MachineOptions):
    """One network and where it computes, for squeeze, recover and analyze."""

    network: Annotated[str, Setting(_NETWORKS)]
    weights: Annotated[str, Setting(f"{_WEIGHTS}.")] = DEFAULT_WEIGHTS
    size: Annotated[int | None, Setting("Side of its images in pixels.  [default: the teacher's]", ge=1)] = (
        None
    )
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def prepare_machine(self, workers: EngineOptions | None = None) -> Machine:
        """Set the number of threads, refuse a device that is not there; return what workers compute with.

        workers: who does the work, if not this process alone.
        """
        import torch

        from lpld_core.teachers.teacher import Machine

        workers = workers or EngineOptions()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if workers.engine == "local":
            check_device(self.device)
        share = max(1, (os.cpu_count() or 1) // (workers.jobs or 1))
        return Machine(device=self.device, threads=self.threads or workers.threads or share)

    def load(self, *, classes: int | None = None, device: str | None = None) -> LoadedTeacher:
        """Load the network; refuse one with another class count. device: instead of the command line's."""
        from lpld_core.teachers.teacher import load_teacher

        return load_teacher(
            self.network,
            weights=self.weights,
            classes=classes,
            input_size=None if self.size is None else (self.size, self.size),
            mean=self.mean,
            std=self.std,
            device=device or self.device,
        )


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """Teachers of a pool: one, or an ensemble."""

    teachers: Annotated[tuple[str, ...], Setting(f"{_NETWORKS} Give several for an ensemble.")] = ()
    weights: Annotated[
        tuple[str, ...], Setting(f"{_WEIGHTS}, one per --teacher.  [default: those its makers publish]")
    ] = ()
    size: Annotated[int | None, Setting("Side of a view in pixels.  [default: the teacher's]", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def choices(self, base: tuple[TeacherChoice, ...] = ()) -> tuple[TeacherChoice, ...]:
        """Pair each teacher with its weights.

        base: teachers where none are named; what is given replaces parts of them.
        """
        chosen = tuple(TeacherChoice(name=name) for name in self.teachers) or base
        if not chosen:
            raise click.UsageError("Missing option '--teacher'.")
        if self.weights and len(self.weights) != len(chosen):
            raise click.UsageError(
                f"give --teacher-weights once per --teacher ({len(chosen)} times), got {len(self.weights)}"
            )
        return tuple(
            TeacherChoice(
                name=teacher.name,
                weights=self.weights[number] if self.weights else teacher.weights,
                input_size=teacher.input_size if self.size is None else (self.size, self.size),
                mean=self.mean or teacher.mean,
                std=self.std or teacher.std,
            )
            for number, teacher in enumerate(chosen)
        )


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Who does the work: processes of this machine, or a Ray cluster."""

    jobs: Annotated[
        int | None, Setting("Processes.  [default: 1; with ray, as many as there is room for]", ge=1)
    ] = None
    engine: Annotated[
        Literal["local", "ray"],
        Setting(
            "Processes of this machine, or a Ray cluster. All workers need the same paths: a shared disk."
        ),
    ] = "local"
    ray_address: Annotated[
        str | None, Setting("HOST:PORT of the cluster's head.  [default: Ray started here]")
    ] = None
    cpus_per_task: Annotated[float | None, Setting("CPUs a Ray worker holds.  [default: 1]", ge=0)] = None
    gpus_per_task: Annotated[float | None, Setting("GPUs a Ray worker holds.  [default: 0]", ge=0)] = None

    def __post_init__(self) -> None:
        if self.engine == "local":
            for name in ("ray_address", "cpus_per_task", "gpus_per_task"):
                if getattr(self, name) is not None:
                    raise click.UsageError(f"--{name.replace('_', '-')} goes with --engine ray")

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
    def opened(self) -> Iterator[Executor]:
        """Give the engine; what it has started goes afterwards."""
        if self.engine == "local":
            from lpld_labels.exec.local import LocalExecutor

            yield LocalExecutor(self.jobs or 1)
            return
        from lpld_labels.exec.ray import RayExecutor, RaySettings

        settings = RaySettings(
            address=self.ray_address,
            workers=self.jobs,
            gpus_per_task=self.gpus_per_task or 0.0,
            cpus_per_task=1.0 if self.cpus_per_task is None else self.cpus_per_task,
        )
        with RayExecutor(settings) as engine:
            yield engine


def check_device(device: str) -> None:
    """Refuse a device that is not there, before anything else is done."""
    import torch

    from lpld_core.networks.weights import first_line

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error)
        raise click.BadParameter(f"'{device}' is not usable here: {reason}", param_hint="--device") from None
