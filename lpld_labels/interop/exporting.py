"""Exporting a pool to the label folder of another program, which reads it with plain `torch.load`.

The folder appears when it is complete; until then it grows in a directory beside it, where the same call
resumes after an interruption.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from lpld_labels.errors import InvalidArgumentError, LabelPoolError, PoolConflictError, PoolWriteError
from lpld_labels.exec.job import Progress
from lpld_labels.format.strict_json import to_json
from lpld_labels.interop.claims import Claim
from lpld_labels.interop.export_batches import BatchExport
from lpld_labels.interop.label_folder import BATCH_IDS, EPOCH_IDS, is_label_file
from lpld_labels.interop.layouts import LAYOUTS
from lpld_labels.interop.settings import ExportOptions
from lpld_labels.interop.torch_file import torch_file_bytes
from lpld_labels.io.locks import locked_directory
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.pool.reader import PoolReader
from lpld_labels.transforms.outputs import OVERWRITE_HINT, local_directory, require_apart

EXPORT_FORMATS = tuple(layout.name for layout in LAYOUTS.values() if layout.exported)
_LABEL_SUFFIX = ".tar"


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
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a pool as a label folder of another program. Any codec: labels are decoded.

    A folder that holds just what would be written is left as it is.
    overwrite: replace another label folder that is there.
    """
    if label_format not in EXPORT_FORMATS:
        raise InvalidArgumentError(
            "unknown export format", expected=", ".join(EXPORT_FORMATS), got=label_format
        )
    out = local_directory(folder)
    require_apart(out, pool.location)
    if overwrite:
        _require_label_folder(out)
    options = options or ExportOptions()
    export = BatchExport(pool, LAYOUTS[label_format], options)
    job = {"pool": pool.manifest.content_digest, "format": label_format, **asdict(options)}
    if _is_export(export, out, progress):
        _clear_workplace(out)
    else:
        if out.exists() and not overwrite and not (out.is_dir() and not any(out.iterdir())):
            raise PoolConflictError("something is already here", where=out, hint=OVERWRITE_HINT)
        _write(export, out, job, progress)
    return ExportReport(
        format=label_format,
        pool=str(pool.location),
        folder=str(out),
        batches=export.batches,
        rows=export.rows,
        bytes=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        notes=tuple(export.notes),
        claims=tuple(export.claims()),
    )


def _require_label_folder(path: Path) -> None:
    """Refuse to replace anything but a folder of label files: programs allow no mark of ours in it.

    Their names are common (`.tar`), so each is looked into.
    """
    if not path.exists():
        return
    hint = "choose another path, or move it away"
    if not path.is_dir():
        raise PoolConflictError("this is no folder, so it is not replaced", where=path, hint=hint)
    for file in sorted(path.rglob("*")):
        is_ids = file.parent == path and file.name in (EPOCH_IDS, BATCH_IDS) and file.is_file()
        is_folder = file.is_dir() and not file.is_symlink()
        if not (is_folder or is_ids or is_label_file(file)):
            raise PoolConflictError(
                "this is no label file, so the folder is not replaced", where=file, hint=hint
            )


def _is_export(export: BatchExport, folder: Path, progress: Progress | None) -> bool:
    """Whether a folder holds what would be written, byte for byte, and nothing else."""
    there = {path for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else set()
    if len(there) != export.batches + len(export.id_files()):
        return False
    for done, (name, content) in enumerate(export.contents(lambda name: True), 1):
        path = folder / name
        if path not in there or path.read_bytes() != _encoded(name, content):
            return False
        if progress is not None:
            progress(done, export.batches)
    return all(
        (folder / name) in there and (folder / name).read_text(encoding="utf-8") == "".join(pieces)
        for name, pieces in export.id_files().items()
    )


def _write(export: BatchExport, out: Path, job: dict[str, Any], progress: Progress | None) -> None:
    """Fill a directory beside `out` and move it into place; unfinished work of the same job is used."""
    workplace = _workplace(out)
    with locked_directory(workplace), write_errors(out), _nothing_of_refused(workplace):
        folder = _prepared(workplace, job)
        there = {str(path.relative_to(folder)) for path in folder.rglob(f"*{_LABEL_SUFFIX}")}
        missing = export.contents(lambda name: name not in there)
        for done, (name, content) in enumerate(missing, len(there) + 1):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = workplace / "file"
            temporary.write_bytes(_encoded(name, content))
            temporary.replace(path)
            if progress is not None:
                progress(done, export.batches)
        for name, pieces in export.id_files().items():
            with (folder / name).open("w", encoding="utf-8") as stream:
                stream.writelines(pieces)
        if out.exists():
            out.replace(workplace / "old")
        folder.replace(out)
        shutil.rmtree(workplace)


def _workplace(out: Path) -> Path:
    """Return the directory beside a folder in which it grows."""
    workplace = out.with_name(f".{out.name}.unfinished")
    refuse_links([workplace])
    return workplace


def _clear_workplace(out: Path) -> None:
    """Delete what a run left that was killed after its folder was moved into place."""
    workplace = _workplace(out)
    if workplace.exists():
        with locked_directory(workplace), write_errors(workplace):
            shutil.rmtree(workplace)


@contextlib.contextmanager
def _nothing_of_refused(workplace: Path) -> Iterator[None]:
    """Delete unfinished work that can never be finished, because the labels themselves are refused."""
    try:
        yield
    except LabelPoolError as error:
        if not isinstance(error, PoolWriteError):
            shutil.rmtree(workplace)
        raise


def _prepared(workplace: Path, job: dict[str, Any]) -> Path:
    """Return the folder to fill; whatever another job has left there is deleted."""
    record, folder = workplace / "job.json", workplace / "folder"
    if not record.exists() or record.read_bytes() != to_json(job):
        for entry in workplace.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        write_atomically(record, to_json(job))
    folder.mkdir(exist_ok=True)
    return folder


def _encoded(name: str, content: list[Any]) -> bytes:
    return torch_file_bytes(content, name=PurePath(name).stem)
