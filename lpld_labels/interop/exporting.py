"""Export a pool as the label folder of another program, which reads it with plain `torch.load`.

Files are written beside the folder and moved into place at the end. Repeat the call to resume an export.

Trainers hard-code view sizes, normalisation, resize filter and image order. So a student may see other
pixels than the teacher, even if the folder is correct. A `Claim` says whether a trainer replays all views.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.errors import (
    InvalidArgumentError,
    LabelPoolError,
    LabelSourceError,
    PoolConflictError,
    PoolWriteError,
)
from lpld_labels.exec.job import Progress, say_reused
from lpld_labels.format.images import ImageTable
from lpld_labels.format.records import BatchKey, IntArray, LabelArray, ViewBatch
from lpld_labels.format.strict_json import to_json
from lpld_labels.interop import layouts
from lpld_labels.interop.batch_file import BatchFile, batch_items
from lpld_labels.interop.image_ids import ERAS, Era, SampledOrders
from lpld_labels.interop.pixels import cutouts_in_fractions, image_sides, stored_fractions
from lpld_labels.interop.settings import DEFAULT_SAMPLER_SEED, ExportOptions
from lpld_labels.interop.torch_file import torch_file_bytes
from lpld_labels.io.locks import locked_directory
from lpld_labels.io.storage import refuse_links, write_atomically, write_errors
from lpld_labels.pool.reader import PoolReader
from lpld_labels.results import Result
from lpld_labels.transforms.outputs import OVERWRITE_HINT, local_directory, require_apart


@dataclass(frozen=True, kw_only=True, eq=False)
class ExportPlan:
    """What to export. files: key and path of each batch, in key order.

    regular: whether the pool is a complete labelling run. top_k: number of labels per row; None: all.
    """

    pool: PoolReader
    layout: layouts.Layout
    files: Sequence[tuple[BatchKey, str]]
    regular: bool
    top_k: int | None
    notes: Sequence[str]

    @property
    def cut_out(self) -> bool:
        return self.pool.header.augmentation.cutout_fraction is not None

    def views(self) -> Iterator[ViewBatch]:
        return (self.pool.read_views(key) for key, _ in self.files)


def plan_export(pool: PoolReader, layout: layouts.Layout, options: ExportOptions) -> ExportPlan:
    """Choose the file of each batch; refuse pools that the layout cannot hold."""
    if pool.header.label_kind != "logits":
        raise LabelSourceError(
            f"labels are {pool.header.label_kind}, but this format stores logits",
            where=pool.location,
            hint="use the pool itself",
        )
    _require_types(pool, layout)
    regular, notes = _is_regular(pool), []
    keys = places = list(pool.keys)
    top_k = None
    if any(item.name == "classes" for item in layout.items):
        top_k = options.top_k or (None if pool.codec.top_k is None else pool.codec.top_k.k)
    if layout.ids == "sampler":
        _require_regular(pool, regular, "every batch of every epoch")
        notes += _sampler_notes(pool)
    elif layout.ids == "items":
        # G-VBSM's trainer expects every image in every epoch.
        complete = regular and set(_epoch_rows(pool).values()) == {len(pool.images)}
        _require_regular(pool, complete, f"all {len(pool.images)} images in every epoch")
    elif layout.ids == "batch lists":
        if top_k is None:
            notes.append("labels have all classes: the pool is not top-k and --top-k was not given")
        places = [BatchKey(0, number) for number in range(len(keys))]
    elif not regular:
        length = max(1, len(pool.images) // pool.header.batch_size)
        notes.append(f"batches renumbered, {length} per epoch: the pool is not a complete run")
        short = set(_short_batches(pool))
        keys = [key for key in keys if key not in short]
        if short:
            notes.append(f"{len(short)} incomplete batches left out")
        places = [BatchKey(*divmod(number, length)) for number in range(len(keys))]
    files = [
        (key, layout.file.format(epoch=place.epoch, batch=place.batch))
        for key, place in zip(keys, places, strict=True)
    ]
    return ExportPlan(pool=pool, layout=layout, files=files, regular=regular, top_k=top_k, notes=notes)


def _require_types(pool: PoolReader, layout: layouts.Layout) -> None:
    """Raise if the batch size, view size or number of classes is too large for the layout's dtypes."""
    header = pool.header
    dtypes = {item.name: item.dtype for item in layout.items if item.dtype}
    for name, what, value, spare in (
        ("partners", "batch size", header.batch_size, 1),
        ("box", "size of views", header.augmentation.output_height, 0),
        ("classes", "number of classes", header.classes, 1),
    ):
        limit = int(np.iinfo(dtypes[name]).max) + spare if name in dtypes else value
        if value > limit:
            raise LabelSourceError(
                f"{what} is too large for this format",
                where=pool.location,
                expected=f"<= {limit}",
                got=value,
                hint="use --format lpld",
            )


def _require_regular(pool: PoolReader, regular: bool, expected: str) -> None:
    if not regular:
        raise LabelSourceError(
            "this format cannot hold a pruned or incomplete pool",
            where=pool.location,
            expected=expected,
            hint="use --format lpld, which stores image ids",
        )


def _sampler_notes(pool: PoolReader) -> list[str]:
    """Return a note if only old or only new PyTorch draws the pool's image order; raise if neither does."""
    fitting = _sampler_eras(pool)
    if not fitting:
        raise LabelSourceError(
            "this format stores no image ids, and the pool's images are not in the order that trainers draw",
            where=pool.location,
            expected=f"the order of RandomSampler with seed {DEFAULT_SAMPLER_SEED}",
            hint="use --format lpld, which stores image ids, or build with --replayable-by sre2l",
        )
    if len(fitting) == len(ERAS):
        return []
    return [f"the image order is that of {ERAS[fitting[0]]}; train with that version"]


def _epoch_rows(pool: PoolReader) -> Counter[int]:
    rows: Counter[int] = Counter()
    for key, count in zip(pool.keys, pool.index.rows.tolist(), strict=True):
        rows[key.epoch] += count
    return rows


def _short_batches(pool: PoolReader) -> list[BatchKey]:
    size = pool.header.batch_size
    return [key for key, rows in zip(pool.keys, pool.index.rows.tolist(), strict=True) if rows != size]


def _is_regular(pool: PoolReader) -> bool:
    """Whether a pool holds a complete labelling run.

    Trainers compute a file name from a running batch number and the length of epoch 0. So every epoch but
    the last must be as long as the first, and only the last batch of an epoch may be short.
    """
    keys = list(pool.keys)
    counts = list(Counter(key.epoch for key in keys).values())
    dense = [BatchKey(epoch, batch) for epoch, length in enumerate(counts) for batch in range(length)]
    even = bool(counts) and len(set(counts[:-1])) <= 1 and counts[-1] <= counts[0]
    return keys == dense and even and all(key.batch == counts[key.epoch] - 1 for key in _short_batches(pool))


def _sampler_eras(pool: PoolReader) -> list[Era]:
    """Return the PyTorch versions (see ERAS) whose RandomSampler draws the pool's image order.

    Trainers draw as many images as the files of epoch 0 contain, so epoch 0 must be complete.
    """
    if _epoch_rows(pool)[0] != len(pool.images):
        return []
    return [era for era in ERAS if _drawn_by(pool, era)]


def _drawn_by(pool: PoolReader, era: Era) -> bool:
    size, orders = pool.header.batch_size, SampledOrders(len(pool.images), era=era)
    for key in pool.keys:
        expected = orders[key.epoch][key.batch * size : (key.batch + 1) * size]
        if not np.array_equal(pool.read_views(key).images, expected):
            return False
    return True


# Claims about trainers: each check returns the problems that it finds.


def _pixels(plan: ExportPlan) -> list[str]:
    header, augmentation = plan.pool.header, plan.pool.header.augmentation
    views = {224: layouts.CUT_OUT_PROGRAM.normalisation} if plan.cut_out else plan.layout.views
    problems = []
    side = augmentation.output_height
    if side not in views or side != augmentation.output_width:
        sides = " or ".join(map(str, views))
        problems.append(f"its views have {sides} pixels, the pool's {side} x {augmentation.output_width}")
    if augmentation.resize != "pil":
        problems.append(
            f"it resizes with Pillow's bilinear filter, the teacher saw {augmentation.resize}: pixels differ "
            "(build with --replayable-by or --resize pil)"
        )
    for teacher in header.teachers if side in views else ():
        wanted = views[side]
        if teacher.mean is None or teacher.std is None:
            problems.append("the pool does not record its teacher's normalisation")
        elif not (np.allclose(teacher.mean, wanted.mean) and np.allclose(teacher.std, wanted.std)):
            given = f"mean {list(teacher.mean)}"
            problems.append(f"it normalises by mean {list(wanted.mean)}, {teacher.name} by {given}")
    return list(dict.fromkeys(problems))


def _no_cut_outs(plan: ExportPlan) -> list[str]:
    return ["it does not support cut-outs"] if plan.cut_out else []


def _mixed(plan: ExportPlan) -> list[str]:
    mixed = plan.pool.header.augmentation.mix != "none"
    return [] if mixed else ["it cannot read batches that were not mixed"]


def _first_image(plan: ExportPlan) -> list[str]:
    """Return the problems of a trainer that identifies a batch by its first image."""
    problems = []
    if shared := _shared(int(batch.images[0]) for batch in plan.views()):
        problems.append(
            f"it identifies a batch by its first image, and {shared} of {len(plan.files)} batches share "
            "theirs: two of these in one epoch get the same labels"
        )
    if sum(path.startswith("epoch_0/") for _, path in plan.files) == 1:
        problems.append("it skips epochs of one batch")
    return problems


def _first_images(plan: ExportPlan) -> list[str]:
    """Return the problems of a trainer that identifies a batch by its first three images."""
    shared = _shared(tuple(batch.images[:3].tolist()) for batch in plan.views())
    if not shared:
        return []
    return [f"{shared} of {len(plan.files)} batches begin with the same images: it refuses to start"]


def _shared(starts: Iterable[object]) -> int:
    return sum(count for count in Counter(starts).values() if count > 1)


def _sampler_order(plan: ExportPlan) -> list[str]:
    if not plan.regular:
        return ["it draws all epochs in its sampler's order, and the pool is not a complete run"]
    eras = _sampler_eras(plan.pool)
    if not eras:
        return ["it assumes the order of its sampler, not the pool's (build with --replayable-by lpld)"]
    return [] if "new" in eras else [f"the image order is that of {ERAS['old']}: train with that version"]


def _half_precision(plan: ExportPlan) -> list[str]:
    moved, images = 0, plan.pool.images
    for batch in plan.views():
        moved += moved_crops(stored_fractions(batch, images).astype(np.float16), batch, images)
    return [f"{moved} crops are off by a pixel: half precision is too coarse for them"] if moved else []


def moved_crops(coords: npt.NDArray[np.floating[Any]], views: ViewBatch, images: ImageTable) -> int:
    """Return how many crops change when a program converts their fractions `coords`, [B, 4], to pixels.

    The programs multiply in float64; Pillow then rounds two corners, (top, left) and the opposite one.
    """
    found = coords.astype(np.float64) * image_sides(images, views.images)
    crops = views.crops.astype(np.int64)
    same_corner = np.rint(found[:, :2]) == crops[:, :2]
    same_end = np.rint(found[:, :2] + found[:, 2:]) == crops[:, :2] + crops[:, 2:]
    return int((~(same_corner & same_end).all(axis=1)).sum())


def _tail(plan: ExportPlan) -> list[str]:
    """Return a problem if the pool gives probability to classes that the exported labels leave out."""
    pool, kept = plan.pool, plan.top_k
    if kept is None:
        return []
    codec = pool.codec.top_k
    if codec is None or kept < codec.k:
        drops = kept < pool.classes
    else:
        stored = pool.read_encoded(pool.keys[0])
        drops = codec.sparse(stored.payload, rows=stored.views.rows, classes=pool.classes).tail is not None
    if not drops:
        return []
    return [
        f"labels change: it sets all but the {kept} largest to probability 0; the pool gives these the rest"
    ]


@dataclass(frozen=True)
class Trainer:
    """A program and option to train on an exported folder. It replays all views if no check finds a problem.

    option, needs: templates with {batch_size}, {epochs}, {batches}, {mix} and {quantization}.
    """

    program: str
    option: str
    checks: Sequence[Callable[[ExportPlan], list[str]]]
    needs: str = ""


_LPLD = "LPLD train_FKD_label_pruning_batch.py"
_LPLD_SIZE = "int((1 - prune_ratio) x epochs x batches of epoch 0) must not exceed {batches}"
_LPLD_LAST = "it never shows the last batch of an epoch; "
_OPTIONS = "--batch-size {batch_size}, --epochs up to {epochs}{mix}"
TRAINERS: Mapping[str, Sequence[Trainer]] = {
    layouts.SRE2L.name: [
        Trainer(
            "SRe2L train_FKD.py",
            "default",
            (_pixels, _no_cut_outs),
            f"give --fkd-path with a slash at its end, {_OPTIONS}",
        )
    ],
    layouts.LPLD.name: [
        Trainer(_LPLD, "--prune_label --granularity batch", (_pixels,), _LPLD_SIZE),
        Trainer(
            _LPLD,
            "--prune_label --granularity batch_to_epoch",
            (_pixels, _first_image),
            _LPLD_LAST + _LPLD_SIZE,
        ),
        Trainer(_LPLD, "--prune_label --granularity epoch, or no --prune_label", (_pixels, _sampler_order)),
    ],
    layouts.LPQLD.name: [
        Trainer(
            "LPQLD train_FKD_LPQLD.py",
            "--prune_label{quantization}",
            (_pixels, _first_images, _half_precision, _tail),
        )
    ],
    layouts.GVBSM.name: [
        Trainer("G-VBSM train_FKD.py", "default", (_pixels, _no_cut_outs, _mixed), f"give {_OPTIONS}")
    ],
}
"""Name of an export format (`Layout.name`) -> ways to train on a folder of that format."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Whether a program with this option replays all labelled views. why: problems, and options it needs."""

    program: str
    option: str
    holds: bool
    why: str


def claims(plan: ExportPlan) -> tuple[Claim, ...]:
    """Return a claim for each trainer of the plan's layout."""
    header = plan.pool.header
    mix = header.augmentation.mix
    facts = {
        "batch_size": header.batch_size,
        "epochs": plan.pool.manifest.counts.epochs,
        "batches": len(plan.files),
        "mix": "" if mix == "none" else f", --mix-type {mix}",
        "quantization": "" if plan.top_k is None else f" --label_quantization MR-{plan.top_k}",
    }
    found = []
    for trainer in TRAINERS[plan.layout.name]:
        problems = [problem for check in trainer.checks for problem in check(plan)]
        needs = [trainer.needs.format(**facts)] if trainer.needs else []
        option = trainer.option.format(**facts)
        why = "; ".join(problems + needs)
        found.append(Claim(program=trainer.program, option=option, holds=not problems, why=why))
    return tuple(found)


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

    A folder that already has exactly these files is not changed. overwrite: replace any other label folder.
    """
    if label_format not in TRAINERS:
        raise InvalidArgumentError("unknown export format", expected=", ".join(TRAINERS), got=label_format)
    out = local_directory(folder)
    require_apart(out, pool.location)
    if overwrite:
        _require_label_folder(out)
    options = options or ExportOptions()
    plan = plan_export(pool, layouts.LAYOUTS[label_format], options)
    workplace = out.with_name(f".{out.name}.unfinished")
    refuse_links([workplace])
    if _is_export(plan, out, progress):
        if workplace.exists():  # A run was killed after it moved the folder into place.
            with locked_directory(workplace), write_errors(workplace):
                shutil.rmtree(workplace)
    else:
        is_free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
        if not is_free and not overwrite:
            raise PoolConflictError("a file or folder is already here", where=out, hint=OVERWRITE_HINT)
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
    """Refuse to replace anything but a folder of label files, which are recognised by their content."""
    hint = "choose another path, or move it away"
    if path.exists() and not path.is_dir():
        raise PoolConflictError("not a folder, so it is not replaced", where=path, hint=hint)
    for file in sorted(path.rglob("*")):
        is_side = file.parent == path and file.name in layouts.SIDE_FILES and file.is_file()
        is_folder = file.is_dir() and not file.is_symlink()
        if not (is_folder or is_side or layouts.is_label_file(file)):
            problem = "not a label file, so the folder is not replaced"
            raise PoolConflictError(problem, where=file, hint=hint)


def _is_export(plan: ExportPlan, folder: Path, progress: Progress | None) -> bool:
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
    """Return the folder to write to, after deleting leftovers of a different job."""
    record, folder = workplace / "job.json", workplace / "folder"
    if not record.exists() or record.read_bytes() != to_json(job):
        for entry in workplace.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        write_atomically(record, to_json(job))
    folder.mkdir(exist_ok=True)
    return folder


def _write(plan: ExportPlan, folder: Path, out: Path, progress: Progress | None) -> None:
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
        most = f"at most {pool.classes}"
        raise LabelSourceError("--top-k exceeds the number of classes", expected=most, got=kept)
    labels = pool.read_labels(key, dtype=np.float32)
    classes = np.argsort(-labels, axis=1, kind="stable")[:, :kept].astype(np.int32)
    return np.take_along_axis(labels, classes, axis=1).astype(np.float16), classes


def _side_files(plan: ExportPlan) -> dict[str, Callable[[], Iterator[str]]]:
    """Return the files beside the label files: name -> function that yields the text."""
    if not plan.layout.ids_file:
        return {}
    header = to_json(asdict(replace(plan.pool.header, lineage=()))).decode()
    return {plan.layout.ids_file: lambda: _id_lists(plan), layouts.HEADER_FILE: lambda: iter([header])}


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
