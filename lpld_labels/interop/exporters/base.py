"""What every export format provides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lpld_labels.errors import LabelSourceError
from lpld_labels.format.records import BatchKey, LabelArray
from lpld_labels.interop.exporters.claims import Claim
from lpld_labels.pool.reader import PoolReader


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """top_k: keep only the k largest labels (LPQLD, FKD). drop_incomplete: leave out short batches."""

    top_k: int | None = None
    drop_incomplete: bool = False


@dataclass(frozen=True, kw_only=True)
class ExportFile:
    """A batch and the file it goes to, below the label folder."""

    key: BatchKey
    path: str


@dataclass(frozen=True, kw_only=True)
class Amount:
    """How much an export writes: label files, and batches and rows of the pool in them."""

    files: int
    batches: int
    rows: int


class ExportFormat(ABC):
    """One foreign format, for one pool: first `prepare`, then `contents`, then the rest."""

    name: ClassVar[str]
    summary: ClassVar[str]
    label_kinds: ClassVar[tuple[str, ...]] = ("logits",)

    def __init__(self, pool: PoolReader, options: ExportOptions) -> None:
        self.pool = pool
        self.options = options
        self.notes: list[str] = []
        if pool.header.label_kind not in self.label_kinds:
            raise LabelSourceError(
                f"labels are {pool.header.label_kind}, the format holds {' or '.join(self.label_kinds)}",
                where=pool.location,
                hint="export to fkd" if pool.header.label_kind == "probabilities" else "keep the pool",
            )

    @abstractmethod
    def prepare(self) -> Amount:
        """Refuse what the format cannot hold; return what will be written."""

    @abstractmethod
    def contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[Any]]]:
        """Yield the path of every label file below the folder that is wanted, and the list it holds."""

    def id_files(self) -> dict[str, Iterator[str]]:
        """Return JSON files of image ids: name -> text in pieces. Formats without ids have none."""
        return {}

    @abstractmethod
    def claims(self) -> list[Claim]:
        """Return what holds when the program that reads this format trains on what was written."""


class BatchExport(ExportFormat):
    """A format with one file per batch."""

    def prepare(self) -> Amount:
        """Choose the files."""
        self._files = self.files()
        rows = dict(zip(self.pool.keys, self.pool.index.rows.tolist(), strict=True))
        return Amount(
            files=len(self._files),
            batches=len(self._files),
            rows=sum(rows[file.key] for file in self._files),
        )

    def contents(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[Any]]]:
        """Yield file after file."""
        for file in self._files:
            if wanted(file.path):
                yield file.path, self.content(file.key)

    @property
    def chosen(self) -> list[ExportFile]:
        """The files, once prepared."""
        return self._files

    @abstractmethod
    def files(self) -> list[ExportFile]:
        """Return the files to write, in key order."""

    @abstractmethod
    def content(self, key: BatchKey) -> list[Any]:
        """Return the list a file holds."""

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
