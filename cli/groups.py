"""Groups of options that several commands share: teachers, device, executor."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import click

from lpld_core.settings import DEFAULT_WEIGHTS, TeacherChoice
from lpld_labels.settings import Setting

if TYPE_CHECKING:
    from lpld_core.teachers.teacher import LoadedTeacher, Machine
    from lpld_labels.exec.job import Executor

_NETWORKS = "resnet18, timm:NAME, hf:ID, small-resnet18:width=32 or package.module:factory."
_WEIGHTS = "DEFAULT, random, or a safetensors or torch file"
_NORMALISATION = "Normalisation, if the weights do not record it."
_SIZE = "in pixels.  [default: the teacher's]"
THREADS = "CPU threads per process.  [default: the CPUs, divided among the processes]"
_RAY_HERE = "local"


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use, before any work starts."""
    import torch

    from lpld_core.networks.weights import first_line

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = first_line(error)
        raise click.BadParameter(f"'{device}' is not usable here: {reason}", param_hint="--device") from None


@dataclass(frozen=True, kw_only=True)
class ExecutorOptions:
    """Executor: processes of this machine, or a Ray cluster."""

    jobs: Annotated[
        int | None, Setting("Processes.  [default: 1; with Ray, as many as the cluster can run]", ge=1)
    ] = None
    ray: Annotated[
        str | None,
        Setting(
            f"Run on a Ray cluster: HOST:PORT of its head, or '{_RAY_HERE}' to start Ray here. All workers "
            "need the same paths: a shared disk."
        ),
    ] = None
    gpus_per_task: float | None = None

    def require_shared(self, out: str) -> None:
        """Refuse an address if workers on other machines have no shared directory to write to."""
        from lpld_labels.io.addresses import is_address
        from lpld_labels.io.disk_cache import CACHE_VARIABLE

        if self.ray is not None and is_address(out) and not os.environ.get(CACHE_VARIABLE):
            raise click.UsageError(
                "Ray workers write a pool to a shared directory before it is uploaded: set "
                f"${CACHE_VARIABLE} to one, or write to a shared directory and use 'lpld-labels copy'"
            )

    def threads_each(self, threads: int | None) -> int:
        """Return the CPU threads of a worker: those given, else 1 on a cluster, else this machine's share."""
        if self.ray is not None:
            return threads or 1
        return threads or max(1, (os.cpu_count() or 1) // (self.jobs or 1))

    @contextlib.contextmanager
    def opened(self, *, device: str = "cpu", threads: int | None = None) -> Iterator[Executor]:
        """Open the executor. device, threads: what a worker computes with."""
        if self.ray is None:
            from lpld_labels.exec.local import LocalExecutor

            yield LocalExecutor(self.jobs or 1)
            return
        from lpld_labels.exec.ray import RayExecutor, RaySettings

        gpus = float(device.startswith("cuda")) if self.gpus_per_task is None else self.gpus_per_task
        settings = RaySettings(
            address=None if self.ray == _RAY_HERE else self.ray,
            workers=self.jobs,
            gpus_per_task=gpus,
            cpus_per_task=float(self.threads_each(threads)),
        )
        with RayExecutor(settings) as executor:
            yield executor

    def check_device(self, device: str) -> None:
        """Refuse a device that is not on this machine, if this machine does the work."""
        if self.ray is None:
            check_device(device)


@dataclass(frozen=True, kw_only=True)
class TorchExecutorOptions(ExecutorOptions):
    """Executor of workers that run a network."""

    gpus_per_task: Annotated[
        float | None, Setting("GPUs per Ray worker, e.g. 0.5.  [default: 1 with --device cuda, else 0]", ge=0)
    ] = None


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Where torch computes."""

    device: Annotated[str, Setting("cpu, cuda, cuda:1, mps ...")] = "cpu"
    threads: Annotated[int | None, Setting(THREADS, ge=1)] = None

    def prepare_machine(self, workers: ExecutorOptions | None = None) -> Machine:
        """Set this process's threads, check the device, and return where workers compute."""
        import torch

        from lpld_core.teachers.teacher import Machine

        workers = workers or ExecutorOptions()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        workers.check_device(self.device)
        return Machine(device=self.device, threads=workers.threads_each(self.threads))


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(MachineOptions):
    """One network and where it computes, for squeeze, recover and analyze."""

    network: Annotated[str, Setting(_NETWORKS)]
    weights: Annotated[str, Setting(f"{_WEIGHTS}.")] = DEFAULT_WEIGHTS
    size: Annotated[int | None, Setting(f"Side of its images {_SIZE}", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def load(self, *, classes: int | None = None, device: str | None = None) -> LoadedTeacher:
        """Load the network; refuse one with another class count. device: overrides --device."""
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
    """The teachers of a pool; several form an ensemble."""

    teachers: Annotated[tuple[str, ...], Setting(f"{_NETWORKS} Give several for an ensemble.")] = ()
    weights: Annotated[
        tuple[str, ...], Setting(f"{_WEIGHTS}, one per --teacher.  [default: the published weights]")
    ] = ()
    size: Annotated[int | None, Setting(f"Side of a view {_SIZE}", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def choices(self, preset: tuple[TeacherChoice, ...] = ()) -> tuple[TeacherChoice, ...]:
        """Pair each teacher with its weights. preset: teachers if none are given."""
        names = self.teachers or tuple(teacher.name for teacher in preset)
        if not names:
            raise click.UsageError("Missing option '--teacher'.")
        if self.weights and len(self.weights) != len(names):
            raise click.UsageError(
                f"give --teacher-weights once per --teacher ({len(names)} times), got {len(self.weights)}"
            )
        size = None if self.size is None else (self.size, self.size)
        return tuple(
            TeacherChoice(name=name, weights=weights, input_size=size, mean=self.mean, std=self.std)
            for name, weights in zip(names, self.weights or (DEFAULT_WEIGHTS,) * len(names), strict=True)
        )
