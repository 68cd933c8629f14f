"""The directory of a training run: its log, its checkpoint and the finished network.

log.jsonl                one JSON object per epoch
checkpoint.safetensors   all that the next step depends on, and the run's settings
student.safetensors      the finished network, self-describing: `load_teacher` can read it

The checkpoint is written before the first line of the log: files without one belong to another run, or are
all that is left of one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lpld_core.networks.weights import Tensors, WeightsFile, read_weights, save_weights
from lpld_core.train.trainer import EpochProgress
from lpld_core.unfinished import SUFFIX, Checkpoint, require_same_job, sweep, workplace
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.io.storage import TEMPORARY, write_atomically, write_errors

LOG = "log.jsonl"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "student.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class ResumePoint:
    """Where a run was: epochs done and their steps, what was done of the next epoch; state: to load."""

    epochs_done: int
    steps: int
    within: EpochProgress | None
    state: Tensors


class TrainingRun:
    """A run's files. settings: what decides its outcome. overwrite: delete a run of other settings."""

    def __init__(self, directory: Path, settings: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.directory = directory
        self.result = directory / RESULT
        self._overwrite = overwrite
        # Through JSON and back, so that tuples compare equal to the lists they become.
        self._settings: dict[str, Any] = json.loads(json.dumps(dict(settings)))
        self._checkpoint = Checkpoint(directory / CHECKPOINT)
        self.due = self._checkpoint.due

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the directory for this process alone."""
        with write_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with workplace(self.directory / SUFFIX):
            with write_errors(self.directory):
                sweep(self.directory)
            yield

    def finished(self) -> WeightsFile | None:
        """Return the finished network where it is all that is left of this very run, or None."""
        if self._checkpoint.path.exists():
            return None
        try:
            file = read_weights(self.result)
        except InvalidArgumentError:
            return None  # none, or somebody else's file: `resume` says so
        return file if file.about.get("settings") == self._settings else None

    def resume(self) -> ResumePoint | None:
        """Return where an earlier run was, or None; refuse other settings, and files of no known run."""
        file = self._checkpoint.load()
        if file is None:
            if not self._overwrite:
                self._require_nothing_here()
            self._clear()
            return None
        settings = file.about.get("settings")
        try:
            require_same_job(
                settings if isinstance(settings, dict) else {},
                self._settings,
                what="another training run",
                where=self._checkpoint.path,
                otherwise="replace it (--overwrite)",
            )
        except PoolConflictError:
            begun = file.about.get("epochs_done") != 0 or file.about.get("within") is not None
            if begun and not self._overwrite:
                raise
            self._clear()
            return None
        within, epochs_done = file.about["within"], int(file.about["epochs_done"])
        log = self.directory / LOG
        # A line per epoch; epochs after the checkpoint will happen again.
        lines = log.read_bytes().splitlines(keepends=True)[:epochs_done] if log.exists() else []
        write_atomically(log, b"".join(lines))
        return ResumePoint(
            epochs_done=epochs_done,
            steps=int(file.about["steps"]),
            within=None if within is None else EpochProgress(**within),
            state=file.tensors,
        )

    def _require_nothing_here(self) -> None:
        """Refuse to begin where something would be lost that no checkpoint says is of this run."""
        for path, what in ((self.result, "a student"), (self.directory / LOG, "the log of a training run")):
            if path.exists() and path.stat().st_size:
                raise PoolConflictError(
                    f"{what} is here, and nothing says that it is of the run that was asked for",
                    where=path,
                    hint="choose another directory (--out), or replace it (--overwrite)",
                )

    def _clear(self) -> None:
        """Delete an earlier run; the checkpoint last, which says what the rest is."""
        with write_errors(self.directory):
            for name in (RESULT, LOG, CHECKPOINT):
                (self.directory / name).unlink(missing_ok=True)

    def save(self, state: Tensors, *, epochs_done: int, steps: int, within: EpochProgress | None) -> None:
        """Replace the checkpoint. within: what is done of the next epoch."""
        self._checkpoint.save(
            state,
            settings=self._settings,
            epochs_done=epochs_done,
            steps=steps,
            within=None if within is None else asdict(within),
        )

    def finish(self, tensors: Tensors, about: dict[str, Any]) -> None:
        """Write the finished network, with what it takes to know the run again."""
        save_weights(self.result, tensors, {**about, "settings": self._settings})

    def log(self, record: dict[str, Any]) -> None:
        """Append one line."""
        path = self.directory / LOG
        with write_errors(path), path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def require_run_directory(directory: Path) -> None:
    """Refuse a directory with anything but the files of training runs."""
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        if entry.name not in (LOG, CHECKPOINT, RESULT, SUFFIX) and not entry.name.startswith(TEMPORARY):
            raise PoolConflictError(
                "something is already here that is of no training run",
                where=entry,
                hint="choose a new or empty directory (--out)",
            )
