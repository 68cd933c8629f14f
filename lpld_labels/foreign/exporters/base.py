"""What every export format provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, LabelArray
from lpld_labels.pool.reader import PoolReader


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """top_k: keep only the k largest labels (LPQLD). drop_incomplete: leave out short batches."""

    top_k: int | None = None
    drop_incomplete: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportFile:
    """A batch and the file it goes to, below the label folder."""

    key: BatchKey
    path: str


class ExportFormat(ABC):
    """One foreign format, for one pool. Refuses in `files` what the format cannot hold."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def __init__(self, pool: PoolReader, options: ExportOptions) -> None:
        self.pool = pool
        self.options = options
        self.notes: list[str] = []
        if pool.header.label_kind != "logits":
            raise LabelSourceError(
                "labels are probabilities, the format holds logits", where=pool.location, hint="keep the pool"
            )

    @abstractmethod
    def files(self) -> list[ExportFile]:
        """Return the files to write, in key order."""

    @abstractmethod
    def content(self, key: BatchKey) -> list[Any]:
        """Return the list a file holds."""

    def id_files(self, files: list[ExportFile]) -> dict[str, Iterator[str]]:
        """Return JSON files of image ids: name -> text in pieces. Formats without ids have none."""
        del files
        return {}

    def dense(self, key: BatchKey) -> LabelArray:
        """Return labels [B, C] as these programs store them: float16, or float32 if the pool holds that."""
        dtype = np.float32 if self.pool.codec.name == "f32" else np.float16
        with np.errstate(over="ignore"):
            labels = self.pool.read_labels(key, dtype=dtype)
        if not np.isfinite(labels).all():
            raise LabelSourceError("labels are too large for float16", where=f"{self.pool.location}, {key}")
        return labels


def epoch_file(epoch: int, batch: int) -> str:
    """Return the path of a batch in a folder of epochs."""
    return str(Path(f"epoch_{epoch}") / f"batch_{batch}.tar")
