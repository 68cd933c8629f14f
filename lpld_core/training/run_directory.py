"""The directory of a training run: its log, its checkpoint and the finished network.

log.jsonl                one JSON object per epoch
checkpoint.safetensors   all that the next epoch depends on, and the run's settings
student.safetensors      the finished network, self-describing: `load_teacher` can read it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lpld_core.networks.weights import Tensors, read_weights, save_weights
from lpld_labels.errors import PoolConflictError
from lpld_labels.format.strict_json import from_json
from lpld_labels.pool.storage import write_atomically, write_errors

LOG = "log.jsonl"
CHECKPOINT = "checkpoint.safetensors"
RESULT = "student.safetensors"


class TrainingRun:
    """Keeps a run's files. settings: what decides its outcome, as JSON values."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.directory = directory
        # Through JSON and back, so that tuples compare equal to the lists they become.
        self._settings: dict[str, Any] = json.loads(json.dumps(settings))
        with write_errors(directory):
            directory.mkdir(parents=True, exist_ok=True)

    @property
    def result(self) -> Path:
        """Where the finished network is."""
        return self.directory / RESULT

    def resume(self) -> tuple[int, Tensors] | None:
        """Return (epochs done, trainer state) of an earlier run, or None; refuse other settings."""
        path = self.directory / CHECKPOINT
        if not path.exists():
            return None
        file = read_weights(path)
        self._require_same(file.about.get("settings", {}), path)
        return int(file.about["epochs_done"]), file.tensors

    def _require_same(self, found: dict[str, Any], path: Path) -> None:
        for name in sorted(self._settings.keys() | found.keys()):
            if self._settings.get(name) != found.get(name):
                raise PoolConflictError(
                    f"another training run is here: '{name}' differs",
                    where=path,
                    expected=found.get(name),
                    got=self._settings.get(name),
                    hint="finish it with its own settings, choose another directory, or delete this one",
                )

    def save(self, epochs_done: int, state: Tensors) -> None:
        """Replace the checkpoint."""
        about = {"epochs_done": epochs_done, "settings": self._settings}
        save_weights(self.directory / CHECKPOINT, state, about)

    def finish(self, tensors: Tensors, about: dict[str, Any]) -> None:
        """Write the finished network."""
        save_weights(self.result, tensors, about)

    def records(self) -> list[dict[str, Any]]:
        """Return the log."""
        path = self.directory / LOG
        if not path.exists():
            return []
        lines = path.read_bytes().splitlines()
        return [from_json(line, where=f"{path}, line {number}") for number, line in enumerate(lines, 1)]

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
