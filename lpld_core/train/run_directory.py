"""The directory of a training run.

log.jsonl                one JSON object per epoch
checkpoint.safetensors   the training state and the run's settings
student.safetensors      the finished network; `load_teacher` can read it

The checkpoint is written before the first line of the log. So a log or a network without a checkpoint comes
from a different run or from a finished run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lpld_core.networks.weights import Tensors, WeightsFile, read_weights, save_weights
from lpld_core.train.settings import TrainSettings
from lpld_core.train.trainer import EpochProgress
from lpld_core.unfinished import SUFFIX, Checkpoint, require_same_job, sweep, workplace
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.exec.job import reuse
from lpld_labels.io.storage import TEMPORARY, write_atomically, write_errors

LOG = "log.jsonl"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "student.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class ResumePoint:
    """Numbers of epochs and steps done, progress within the next epoch, and the state to load."""

    epochs_done: int
    steps: int
    within: EpochProgress | None
    state: Tensors


class TrainingRun:
    """The files of a run. overwrite: delete a different run. otherwise: end of the error's hint."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, Any],
        *,
        overwrite: bool = False,
        otherwise: str = "replace it (--overwrite)",
    ) -> None:
        self.directory = directory
        self.result = directory / RESULT
        self._overwrite, self._otherwise = overwrite, otherwise
        # JSON turns tuples into lists, as in the file.
        self._settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self._checkpoint = Checkpoint(directory / CHECKPOINT)
        self.due = self._checkpoint.due

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Lock the directory for this process."""
        with write_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with workplace(self.directory / SUFFIX):
            with write_errors(self.directory):
                sweep(self.directory)
            yield

    def finished(self) -> WeightsFile | None:
        """Return the finished network if it is from this run and there is no checkpoint, else None."""
        if self._checkpoint.path.exists():
            return None
        try:
            file = read_weights(self.result)
        except InvalidArgumentError:
            return None  # `resume` refuses files of other programs
        return file if file.about.get("settings") == self._settings else None

    def resume(self) -> ResumePoint | None:
        """Return where this run stopped, or None if it has not begun; refuse the files of other runs."""
        file = self._checkpoint.load()
        if file is None:
            if not self._overwrite:
                self._require_nothing_here()
            self._clear()
            return None
        about, settings = file.about, file.about.get("settings")
        try:
            require_same_job(
                settings if isinstance(settings, dict) else {},
                self._settings,
                what="a different training run",
                where=self._checkpoint.path,
                otherwise=self._otherwise,
            )
        except PoolConflictError:
            begun = about.get("epochs_done") != 0 or about.get("within") is not None
            if begun and not self._overwrite:
                raise
            self._clear()
            return None
        within, epochs_done = about["within"], int(about["epochs_done"])
        steps = within["steps"] if within else 0
        if epochs_done or steps:
            reuse.info("%s: resumes after %d epochs and %d steps", self.result, epochs_done, steps)
        log = self.directory / LOG
        if log.exists():  # epochs after the checkpoint will be logged again
            write_atomically(log, b"".join(log.read_bytes().splitlines(keepends=True)[:epochs_done]))
        return ResumePoint(
            epochs_done=epochs_done,
            steps=int(about["steps"]),
            within=None if within is None else EpochProgress(**within),
            state=file.tensors,
        )

    def _require_nothing_here(self) -> None:
        for path, what in ((self.result, "a student"), (self.directory / LOG, "the log of a training run")):
            if path.exists() and path.stat().st_size:
                raise PoolConflictError(
                    f"{what} is already here, without a checkpoint that identifies its run",
                    where=path,
                    hint="choose another directory (--out), or replace it (--overwrite)",
                )

    def _clear(self) -> None:
        """Delete the files of a run. The checkpoint is last, because it identifies the other files."""
        with write_errors(self.directory):
            for name in (RESULT, LOG, CHECKPOINT):
                (self.directory / name).unlink(missing_ok=True)

    def save(self, state: Tensors, *, epochs_done: int, steps: int, within: EpochProgress | None) -> None:
        """Replace the checkpoint. within: progress within the next epoch."""
        self._checkpoint.save(
            state,
            settings=self._settings,
            epochs_done=epochs_done,
            steps=steps,
            within=None if within is None else asdict(within),
        )

    def finish(self, tensors: Tensors, about: dict[str, Any]) -> None:
        """Write the finished network, with the settings that identify the run."""
        save_weights(self.result, tensors, {**about, "settings": self._settings})

    def log(self, record: dict[str, Any]) -> None:
        path = self.directory / LOG
        with write_errors(path), path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def require_run_directory(directory: Path) -> None:
    """Refuse a directory with files that are not from training runs."""
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        if entry.name not in (LOG, CHECKPOINT, RESULT, SUFFIX) and not entry.name.startswith(TEMPORARY):
            raise PoolConflictError(
                "directory contains files that are not from a training run",
                where=entry,
                hint="choose a new or empty directory (--out)",
            )


def describe_network(
    network: str | None, classes: int, size: tuple[int, int], settings: TrainSettings
) -> dict[str, Any]:
    """Return the metadata from which `load_teacher` restores a trained network."""
    mean, std = list(settings.mean or ()), list(settings.std or ())
    preprocessing = {"input_size": list(size), "mean": mean, "std": std}
    return {"network": network, "classes": classes, "preprocessing": preprocessing}
