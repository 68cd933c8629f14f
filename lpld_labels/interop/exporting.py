"""Export a pool as the label folder of another program, which reads it with plain `torch.load`.

Files are written beside the folder and moved into place at the end. Another call resumes an interrupted one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from lpld_labels.errors import (
    InvalidArgumentError,
    LabelPoolError,
    LabelSourceError,
    PoolConflictError,
    PoolWriteError,
)
from lpld_labels.exec.job import Progress, say_reused
from lpld_labels.format.records import BatchKey, IntArray, LabelArray
from lpld_labels.format.strict_json import to_json
from lpld_labels.interop.batch_file import BatchFile, batch_items
from lpld_labels.interop.export_plan import TRAINERS, Claim, ExportPlan, claims, plan_export
from lpld_labels.interop.layouts import HEADER_FILE, LAYOUTS, SIDE_FILES, is_label_file
from lpld_labels.interop.pixels import cutouts_in_fractions, stored_fractions
from lpld_labels.interop.settings import ExportOptions
from lpld_labels.interop.torch_file import torch_file_bytes
from lpld_labels.io.locks import locked_directory
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.pool.reader import PoolReader
from lpld_labels.results import Result
from lpld_labels.transforms.outputs import OVERWRITE_HINT, local_directory, require_apart


@dataclass(frozen=True, kw_only=True, repr=False)
class ExportReport(Result):
    """Result of an export. notes: sentences for the user. claims: which trainers replay all views."""

    format: str
    pool: str
    folder: str
    batches: int
    rows: int
    bytes: int
    notes: tuple[str, ...]
    claims: tuple[Claim, ...]


def export_pool(
    pool: PoolReader,
    folder: str | os.PathLike[str],
    *,
    label_format: str,
    options: ExportOptions | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ExportReport:
    """Write a pool of any codec as a label folder of another program.

    A folder that already has exactly these files is left alone. overwrite: replace any other label folder.
    """
    if label_format not in TRAINERS:
        raise InvalidArgumentError("unknown export format", expected=", ".join(TRAINERS), got=label_format)
    out = local_directory(folder)
    require_apart(out, pool.location)
    if overwrite:
        _require_label_folder(out)
    options = options or ExportOptions()
    plan = plan_export(pool, LAYOUTS[label_format], options)
    workplace = out.with_name(f".{out.name}.unfinished")
    refuse_links([workplace])
    if _is_export(plan, out, progress):
        if workplace.exists():  # A run was killed after it moved the folder into place.
            with locked_directory(workplace), write_errors(workplace):
                shutil.rmtree(workplace)
    else:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
        if not is_free and not overwrite:
            raise PoolConflictError("something is already here", where=out, hint=OVERWRITE_HINT)
        job = {"pool": pool.manifest.content_digest, "format": label_format, **asdict(options)}
        with locked_directory(workplace), write_errors(out):
            _write(plan, _prepared(workplace, job), out, progress)
            shutil.rmtree(workplace)
    rows = dict(zip(pool.keys, pool.index.rows.tolist(), strict=True))
    return ExportReport(
        format=label_format,
        pool=str(pool.location),
        folder=str(out),
        batches=len(plan.files),
        rows=sum(rows[key] for key, _ in plan.files),
        bytes=sum(path.stat().st_size for path in out.rglob("*") if path.is_file()),
        notes=tuple(plan.notes),
        claims=claims(plan),
    )


def _require_label_folder(path: Path) -> None:
    """Refuse to replace anything but a folder of label files. The suffix `.tar` proves nothing."""
    hint = "choose another path, or move it away"
    if path.exists() and not path.is_dir():
        raise PoolConflictError("not a folder, so it is not replaced", where=path, hint=hint)
    for file in sorted(path.rglob("*")):
        is_side = file.parent == path and file.name in SIDE_FILES and file.is_file()
        is_folder = file.is_dir() and not file.is_symlink()
        if not (is_folder or is_side or is_label_file(file)):
            problem = "not a label file, so the folder is not replaced"
            raise PoolConflictError(problem, where=file, hint=hint)


def _is_export(plan: ExportPlan, folder: Path, progress: Progress | None) -> bool:
    """Whether a folder has exactly the files of the plan, byte for byte."""
    there = {path for path in folder.rglob("*") if path.is_file()} if folder.is_dir() else set()
    side = _side_files(plan)
    if there != {folder / path for path in (*side, *(path for _, path in plan.files))}:
        return False
    for done, (key, name) in enumerate(plan.files, 1):
        if (folder / name).read_bytes() != _content(plan, key, name):
            return False
        if progress is not None:
            progress(done, len(plan.files))
    return all((folder / name).read_text("utf-8") == "".join(text()) for name, text in side.items())


def _prepared(workplace: Path, job: dict[str, Any]) -> Path:
    """Return the folder to write to, after deleting leftovers of another job."""
    record, folder = workplace / "job.json", workplace / "folder"
    if not record.exists() or record.read_bytes() != to_json(job):
        for entry in workplace.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        write_atomically(record, to_json(job))
    folder.mkdir(exist_ok=True)
    return folder


def _write(plan: ExportPlan, folder: Path, out: Path, progress: Progress | None) -> None:
    """Write the files that `folder` lacks, and move `folder` to `out`."""
    workplace = folder.parent
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    there -= _side_files(plan).keys()
    try:
        say_reused(out, len(there), len(plan.files), "label files")
        missing = [(key, name) for key, name in plan.files if name not in there]
        for done, (key, name) in enumerate(missing, len(there) + 1):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            temporary = workplace / "file"
            temporary.write_bytes(_content(plan, key, name))
            temporary.replace(folder / name)
            if progress is not None:
                progress(done, len(plan.files))
    except LabelPoolError as error:
        if not isinstance(error, PoolWriteError):
            shutil.rmtree(workplace)  # The labels cannot be exported: there is nothing to resume.
        raise
    for name, text in _side_files(plan).items():
        with (folder / name).open("w", encoding="utf-8") as stream:
            stream.writelines(text())
    if out.exists():
        out.replace(workplace / "old")
    folder.replace(out)


def _content(plan: ExportPlan, key: BatchKey, name: str) -> bytes:
    pool = plan.pool
    views, augmentation = pool.read_views(key), pool.header.augmentation
    cutout = views.cutout
    labels, classes = (_dense(pool, key), None) if plan.top_k is None else _largest(pool, key, plan.top_k)
    batch = BatchFile(
        coords=stored_fractions(views, pool.images),
        flips=views.flips,
        cutouts=None if cutout is None else cutouts_in_fractions(views, cutout, augmentation),
        mix=views.mix,
        labels=labels,
        classes=classes,
        images=views.images,
    )
    return torch_file_bytes(batch_items(batch, plan.layout.items), name=PurePath(name).stem)


def _dense(pool: PoolReader, key: BatchKey) -> LabelArray:
    """Return labels [B, C] in float16, or in float32 if the pool stores float32."""
    dtype = np.dtype(np.float32 if pool.codec.name == "f32" else np.float16)
    with np.errstate(over="ignore"):
        labels = pool.read_labels(key, dtype=dtype)
    if not np.isfinite(labels).all():
        raise LabelSourceError(f"labels are too large for {dtype}", where=f"{pool.location}, {key}")
    return labels


def _largest(pool: PoolReader, key: BatchKey, kept: int) -> tuple[LabelArray, IntArray]:
    """Return the largest labels of each row, float16 [B, k], and their classes, largest first."""
    codec = pool.codec.top_k
    if codec is not None and kept == codec.k:
        stored = pool.read_encoded(key)
        sparse = codec.sparse(stored.payload, rows=stored.views.rows, classes=pool.classes)
        return sparse.values.astype(np.float16), sparse.indices
    if kept > pool.classes:
        raise LabelSourceError("--top-k exceeds the classes", expected=f"<= {pool.classes}", got=kept)
    labels = pool.read_labels(key, dtype=np.float32)
    classes = np.argsort(-labels, axis=1, kind="stable")[:, :kept].astype(np.int32)
    return np.take_along_axis(labels, classes, axis=1).astype(np.float16), classes


def _side_files(plan: ExportPlan) -> dict[str, Callable[[], Iterator[str]]]:
    """Return the files beside the label files: name -> function that yields the text."""
    if not plan.layout.ids_file:
        return {}
    header = to_json(asdict(replace(plan.pool.header, lineage=()))).decode()
    return {plan.layout.ids_file: lambda: _id_lists(plan), HEADER_FILE: lambda: iter([header])}


def _id_lists(plan: ExportPlan) -> Iterator[str]:
    """Yield the JSON file of image ids, one list at a time."""
    by_epoch = plan.layout.ids == "epoch lists"
    numbered = [
        (PurePath(path).parts[0].removeprefix("epoch_") if by_epoch else str(number), key)
        for number, (key, path) in enumerate(plan.files)
    ]
    separator = "{"
    for name, part in groupby(numbered, key=lambda named: named[0]):
        ids = [image for _, key in part for image in plan.pool.read_views(key).images.tolist()]
        yield f'{separator}"{name}": {json.dumps(ids)}'
        separator = ", "
    yield "}"
