"""The directory of a training run: its log, its checkpoint and the finished network.

log.jsonl                one JSON object per epoch
checkpoint.safetensors   all that the next step depends on, and the run's settings
student.safetensors      the finished network, self-describing: `load_teacher` can read it

The checkpoint comes before the first line of the log: whatever is here without one is of another run, or is
all that is left of one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lpld_core.networks.weights import Tensors, WeightsFile, read_weights, save_weights
from lpld_core.train.trainer import EpochSoFar
from lpld_core.unfinished import SUFFIX, Checkpoint, brief, require_same_job, sweep, workplace
from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.format.strict_json import from_json
from lpld_labels.io.storage import TEMPORARY, write_atomically, write_errors

LOG = "log.jsonl"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "student.safetensors"


@dataclass(frozen=True, kw_only=True, eq=False)
class ResumePoint:
    """Where a run was: epochs done, and what was done of the next one; state: of trainer and loss."""

    epochs_done: int
    within: EpochSoFar | None
    state: Tensors


class TrainingRun:
    """Keeps a run's files.

    settings: what decides its outcome, as JSON values. overwrite: let a run of other settings go; None where
    the user has no say in it.
    """

    def __init__(self, directory: Path, settings: dict[str, Any], *, overwrite: bool | None = None) -> None:
        self.directory = directory
        self._overwrite = overwrite
        # Through JSON and back, so that tuples compare equal to the lists they become.
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        self._checkpoint = Checkpoint(directory / CHECKPOINT)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Have the directory for this process alone."""
        with write_errors(self.directory):
            self.directory.mkdir(parents=True, exist_ok=True)
        with workplace(self.directory / SUFFIX):
            with write_errors(self.directory):
                sweep(self.directory)
            yield

    @property
    def result(self) -> Path:
        """Where the finished network is."""
        return self.directory / RESULT

    def finished(self) -> WeightsFile | None:
        """Return the finished network where it is all that is left of this very run, or None."""
        if (self.directory / CHECKPOINT).exists():
            return None
        try:
            file = read_weights(self.result)
        except InvalidArgumentError:
            return None  # none, or a file of somebody else's: `resume` says so
        return file if file.about.get("settings") == self._settings else None

    def resume(self) -> ResumePoint | None:
        """Return where an earlier run was, or None; refuse other settings, and files of no known run."""
        path = self.directory / CHECKPOINT
        if not path.exists():
            if not self._overwrite:
                self._require_nothing_here()
            self._clear()
            return None
        file = read_weights(path)
        settings = file.about.get("settings")
        try:
            require_same_job(
                settings if isinstance(settings, dict) else {},
                self._settings,
                what="another training run",
                where=path,
                otherwise="delete this one" if self._overwrite is None else "replace it (--overwrite)",
            )
        except PoolConflictError:
            begun = file.about.get("epochs_done") != 0 or file.about.get("within") is not None
            if begun and not self._overwrite:
                raise
            self._clear()
            return None
        within = file.about.get("within")
        return ResumePoint(
            epochs_done=int(file.about["epochs_done"]),
            within=None if within is None else EpochSoFar(**within),
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
        """Let an earlier run go; the checkpoint last, which says what the rest is."""
        with write_errors(self.directory):
            for name in (RESULT, LOG, CHECKPOINT):
                (self.directory / name).unlink(missing_ok=True)

    def due(self) -> bool:
        """Whether it is time to save."""
        return self._checkpoint.due()

    def save(self, epochs_done: int, state: Tensors, *, within: EpochSoFar | None = None) -> None:
        """Replace the checkpoint. within: what is done of the next epoch."""
        so_far = None if within is None else asdict(within)
        self._checkpoint.save(state, epochs_done=epochs_done, settings=self._settings, within=so_far)

    def finish(self, tensors: Tensors, about: dict[str, Any]) -> None:
        """Write the finished network, with what it takes to know the run again."""
        save_weights(self.result, tensors, {**about, "settings": self._settings})

    def records(self) -> list[dict[str, Any]]:
        """Return the log; refuse lines that no training run has written."""
        path = self.directory / LOG
        if not path.exists():
            return []
        # A line without an end was being written when the run was killed.
        lines = path.read_bytes().split(b"\n")[:-1]
        return [_record(line, where=f"{path}, line {number}") for number, line in enumerate(lines, 1)]

    def steps(self) -> int:
        """Return how many steps the log tells of."""
        return sum(record["steps"] for record in self.records())

    def keep_log_before(self, epoch: int) -> None:
        """Forget what an earlier run logged after its last checkpoint: it will happen again."""
        kept = [record for record in self.records() if record["epoch"] < epoch]
        text = "".join(json.dumps(record) + "\n" for record in kept)
        write_atomically(self.directory / LOG, text.encode())

    def log(self, record: dict[str, Any]) -> None:
        """Append one line."""
        path = self.directory / LOG
        with write_errors(path), path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")


def _record(line: bytes, *, where: str) -> dict[str, Any]:
    """Parse a line of a log, whose epoch and steps are read again by runs that go on."""
    record = from_json(line, where=where)
    numbers = [record.get(name) if isinstance(record, dict) else None for name in ("epoch", "steps")]
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise PoolConflictError(
            "not a line of a training run's log",
            where=where,
            expected="an object with the numbers 'epoch' and 'steps'",
            got=brief(record),
            hint="move the log away to go on without it, or choose another directory (--out)",
        )
    parsed: dict[str, Any] = record
    return parsed


def require_run_directory(directory: Path) -> None:
    """Refuse a directory with anything but what training runs leave."""
    for entry in sorted(directory.iterdir()) if directory.is_dir() else []:
        if entry.name not in (LOG, CHECKPOINT, RESULT, SUFFIX) and not entry.name.startswith(TEMPORARY):
            raise PoolConflictError(
                "something is already here that is of no training run",
                where=entry,
                hint="choose a new or empty directory (--out)",
            )
