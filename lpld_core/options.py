"""Arguments shared by several verbs (teachers, devices, workers), and checks before any work starts."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from lpld_core.settings import DEFAULT_WEIGHTS, TeacherChoice
from lpld_labels.errors import UsageError
from lpld_labels.io.addresses import Location
from lpld_labels.options import ExecutorOptions, listed
from lpld_labels.settings import Setting

if TYPE_CHECKING:
    from lpld_core.teachers.teacher import LoadedTeacher, Machine
    from lpld_labels.exec.job import Executor

log = logging.getLogger(__name__)

_NETWORKS = "Network: resnet18, timm:NAME, hf:ID, small-resnet18:width=32 or package.module:factory."
_WEIGHTS = "Weights: DEFAULT, random, or a safetensors or torch file"
_NORMALISATION = "Normalisation per channel, if the weights do not record it."
_SIZE = "in pixels.  [default: the teacher's]"
THREADS = "Number of CPU threads per process.  [default: all CPUs, divided among the processes]"
_SHOWN_FILES = 3


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use, before any work starts."""
    import torch

    from lpld_core.networks.weights import first_line

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"PyTorch cannot use device '{device}': {first_line(error)}") from None


def look_over(folder: Location) -> list[str]:
    """Return the class names of an image folder; list skipped files in a log message.

    One image of each extension is decoded, so that unsupported formats fail before any work starts.
    """
    from lpld_labels.render.images import class_names, list_images, passed_over, try_each_kind

    root = Path(folder)
    paths, _ = list_images(root)
    try_each_kind(root, paths)
    skipped = passed_over(root)
    if skipped:
        files = f"{len(skipped)} files" if len(skipped) > 1 else "1 file"
        shown = ", ".join(skipped[:_SHOWN_FILES]) + (", ..." if len(skipped) > _SHOWN_FILES else "")
        log.warning("note: %s in %s skipped, no image extension: %s", files, folder, shown)
    return class_names(root)


@dataclass(frozen=True, kw_only=True)
class TorchExecutorOptions(ExecutorOptions):
    """Options of an executor whose workers run a network."""

    gpus_per_task: Annotated[
        float | None, Setting("GPUs per Ray worker, e.g. 0.5.  [default: 1 with --device cuda, else 0]", ge=0)
    ] = None

    def opened_for(self, device: str, threads: int | None) -> AbstractContextManager[Executor]:
        """Open the executor. device: torch device of its workers. threads: CPU threads of each worker."""
        gpus = float(device.startswith("cuda")) if self.gpus_per_task is None else self.gpus_per_task
        return self.opened(gpus=gpus, threads=threads)


@dataclass(frozen=True, kw_only=True)
class MachineOptions:
    """Device and CPU threads of torch."""

    device: Annotated[str, Setting("Device: cpu, cuda, cuda:1, mps ...")] = "cpu"
    threads: Annotated[int | None, Setting(THREADS, ge=1)] = None

    def prepare_machine(self, workers: ExecutorOptions | None = None) -> Machine:
        """Set this process's number of threads, check the device, return the `Machine` of the workers."""
        import torch

        from lpld_core.teachers.teacher import Machine

        workers = workers or ExecutorOptions()
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        if workers.ray is None:
            check_device(self.device)
        return Machine(device=self.device, threads=workers.threads_each(self.threads))


@dataclass(frozen=True, kw_only=True)
class NetworkOptions(MachineOptions):
    """Options of squeeze, recover and analyze: a network, and the device and threads that run it."""

    teacher: Annotated[str, Setting(_NETWORKS)]
    weights: Annotated[Location, Setting(f"{_WEIGHTS}.")] = DEFAULT_WEIGHTS
    size: Annotated[int | None, Setting(f"Side of the images {_SIZE}", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def load(self, *, classes: int | None = None, device: str | None = None) -> LoadedTeacher:
        """Load the network. classes: required class count. device: overrides the option of that name."""
        from lpld_core.teachers.teacher import load_teacher

        return load_teacher(
            self.teacher,
            weights=os.fspath(self.weights),
            classes=classes,
            input_size=None if self.size is None else (self.size, self.size),
            mean=self.mean,
            std=self.std,
            device=device or self.device,
        )


@dataclass(frozen=True, kw_only=True)
class TeacherOptions:
    """The teachers of a pool; several form an ensemble."""

    teacher: Annotated[
        tuple[str, ...] | list[str] | str, Setting(f"{_NETWORKS} Give several for an ensemble.")
    ] = ()
    weights: Annotated[
        tuple[Location, ...] | list[Location] | Location,
        Setting(f"{_WEIGHTS}, one per --teacher.  [default: the published weights]"),
    ] = ()
    size: Annotated[int | None, Setting(f"Side of a view {_SIZE}", ge=1)] = None
    mean: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None
    std: Annotated[tuple[float, ...] | None, Setting(_NORMALISATION)] = None

    def choices(self, preset: tuple[TeacherChoice, ...] = ()) -> tuple[TeacherChoice, ...]:
        """Pair each teacher with its weights. preset: teachers to use if none are given."""
        given = (self.teacher,) if isinstance(self.teacher, str) else tuple(self.teacher)
        names = given or tuple(teacher.name for teacher in preset)
        weights = [os.fspath(file) for file in listed(self.weights)]
        if not names:
            raise UsageError("Missing option '--teacher'.")
        if weights and len(weights) != len(names):
            raise UsageError(
                f"give --teacher-weights once per --teacher: expected {len(names)}, got {len(weights)}"
            )
        size = None if self.size is None else (self.size, self.size)
        return tuple(
            TeacherChoice(name=name, weights=file, input_size=size, mean=self.mean, std=self.std)
            for name, file in zip(names, weights or [DEFAULT_WEIGHTS] * len(names), strict=True)
        )
