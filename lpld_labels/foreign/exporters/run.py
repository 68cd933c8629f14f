"""Exporting a pool to the folders that other programs read."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.foreign.exporters.base import ExportFormat, ExportOptions
from lpld_labels.foreign.exporters.claims import Claim
from lpld_labels.foreign.exporters.fkd import FkdExport
from lpld_labels.foreign.exporters.gvbsm import GvbsmExport
from lpld_labels.foreign.exporters.lpld import LpldExport
from lpld_labels.foreign.exporters.lpqld import LpqldExport
from lpld_labels.foreign.exporters.sre2l import Sre2lExport
from lpld_labels.foreign.exporters.torch_zip import torch_zip_bytes
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.storage import write_errors

EXPORT_FORMATS: Mapping[str, type[ExportFormat]] = {
    kind.name: kind for kind in (Sre2lExport, LpldExport, LpqldExport, GvbsmExport, FkdExport)
}
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """What was written; notes are one sentence each, claims say what holds in the program it is for."""

    format: str
    pool: str
    folder: str
    batches: int
    rows: int
    bytes: int
    notes: tuple[str, ...]
    claims: tuple[Claim, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return asdict(self)


def export_pool(
    pool: PoolReader,
    folder: str | os.PathLike[str],
    *,
    label_format: str,
    options: ExportOptions | None = None,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a pool as a label folder of another program. Any codec: labels are decoded.

    The folder appears when it is complete; until then it has a temporary name beside it.
    """
    if label_format not in EXPORT_FORMATS:
        raise InvalidArgumentError(
            "unknown export format", expected=", ".join(EXPORT_FORMATS), got=label_format
        )
    out = Path(folder).absolute()
    if out.exists():
        raise PoolConflictError("something is already here", where=out, hint="choose another path")
    kind = EXPORT_FORMATS[label_format](pool, options or ExportOptions())
    amount = kind.prepare()
    workplace = out.with_name(f".{out.name}.{uuid.uuid4().hex}")
    with write_errors(out):
        try:
            workplace.mkdir(parents=True)
            size = _write(kind, amount.files, workplace, progress)
            workplace.rename(out)
        except BaseException:
            shutil.rmtree(workplace, ignore_errors=True)
            raise
    return ExportReport(
        format=label_format,
        pool=str(pool.location),
        folder=str(out),
        batches=amount.batches,
        rows=amount.rows,
        bytes=size,
        notes=tuple(kind.notes),
        claims=tuple(kind.claims()),
    )


def _write(kind: ExportFormat, files: int, root: Path, progress: Progress | None) -> int:
    size = 0
    for done, (name, content) in enumerate(kind.contents(), 1):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        size += path.write_bytes(torch_zip_bytes(content, name=PurePath(name).stem))
        if progress is not None:
            progress(done, files)
    for name, pieces in kind.id_files().items():
        with (root / name).open("w", encoding="utf-8") as stream:
            for piece in pieces:
                size += stream.write(piece)
    return size
