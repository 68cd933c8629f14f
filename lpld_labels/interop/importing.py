"""Import a label folder: detect its layout, plan, run the plan, report.

Folders with one file per batch are read in import_batches.py. FKD folders have one file per image, with many
crops of it, and are read here:

    [coords float [n, 4], flips bool [n], labels], where labels are one of:

    hard        class numbers [n]
    smoothing   [n, 2]: class number, its probability
    marginal    [n, 2, k]: the k most likely classes, their probabilities (marginal_smoothing_k5, ...)

Class numbers are floats if stored with probabilities or in half precision.

Views of FKD are not mixed, so batches can be chosen freely: batch b of epoch c holds crop c of the b-th group
of images. Labels become top-k probabilities. As in FKD's trainer, the remaining probability is spread evenly
over the other classes (marginal smoothing). A hard label becomes probability 1 for its class.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import (
    ImageMismatchError,
    InvalidArgumentError,
    LabelFileError,
    LabelSourceError,
    StagingMismatchError,
)
from lpld_labels.exec.job import Executor, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format import arrow
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest, PoolHeader
from lpld_labels.format.records import BatchKey, BoolArray, IntArray, LabelArray, ViewBatch
from lpld_labels.interop import import_target
from lpld_labels.interop.batch_file import parse_batch, read_batches
from lpld_labels.interop.import_batches import BatchFiles, plan_batches
from lpld_labels.interop.import_target import Request, Target, first_readable
from lpld_labels.interop.layouts import LAYOUTS, SAME_LAYOUT, LabelFolder, Layout, list_label_folder
from lpld_labels.interop.pixels import crops_in_pixels, image_sides
from lpld_labels.interop.settings import ImportOptions
from lpld_labels.interop.torch_file import read_torch_file
from lpld_labels.pool.plan import PoolPlan, Shard, raw_batches_per_shard
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.shard import EncodedBatch, Skipped
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import partial_directory, unfinished
from lpld_labels.render.images import scan_image_folder
from lpld_labels.results import Result
from lpld_labels.transforms.outputs import OVERWRITE_HINT, pool_path
from lpld_labels.transforms.pipeline import finished_before, lineage_step, require_output, run_plan
from lpld_labels.transforms.remote_output import writes_pools

AUTO = "auto"
_COMPARED = 64  # Finished batches or image groups that a resumed import compares again.
LabelType = Literal["hard", "smoothing", "marginal"]
_FLOATS = (np.float16, np.float32)
_SAMPLED = 9
MAX_HALF_CLASSES = 2048  # Half precision represents every integer up to this one.


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFile:
    """The labels of n crops of one image. coords: [n, 4] fractions. flips: bool [n].

    classes: int32 [n, k]. values: probabilities of these classes, float16 or float32 [n, k].
    """

    kind: LabelType
    coords: npt.NDArray[np.floating[Any]]
    flips: BoolArray
    classes: IntArray
    values: LabelArray


def read_image_file(path: Path) -> ImageFile:
    """Read and validate the label file of one image."""
    match read_torch_file(path):
        case [np.ndarray() as coords, np.ndarray() as flips, np.ndarray() as labels]:
            pass
        case _:
            raise LabelFileError("not the labels of one image", where=path, expected="a list of three arrays")
    rows = len(flips) if flips.ndim == 1 else 0
    good = coords.dtype in _FLOATS and flips.dtype == np.bool_ and coords.shape == (rows, 4) and rows > 0
    floats = labels.dtype in _FLOATS
    kind: LabelType
    if good and labels.shape == (rows,) and (floats or labels.dtype.kind in "iu"):
        kind, numbers, values = "hard", labels[:, None], np.ones((rows, 1), np.float16)
    elif good and floats and labels.shape == (rows, 2):
        kind, numbers, values = "smoothing", labels[:, :1], labels[:, 1:]
    elif good and floats and labels.ndim == 3 and labels.shape[:2] == (rows, 2) and labels.size:
        kind, numbers, values = "marginal", labels[:, 0], labels[:, 1]
    else:
        raise LabelFileError(
            "labels have the wrong shape or type",
            where=path,
            expected="coords float [n, 4], flips bool [n], labels [n], [n, 2] or [n, 2, k]",
            got=", ".join(f"{array.dtype} {list(array.shape)}" for array in (coords, flips, labels)),
        )
    numbers = numbers.astype(np.float64)
    sound = (
        ((coords >= 0) & (coords <= 1)).all()
        and ((numbers >= 0) & (numbers < 2**24) & (numbers == np.round(numbers))).all()
        and ((values >= 0) & (values <= 1)).all()
    )
    if not sound or (np.diff(np.sort(numbers, axis=1), axis=1) == 0).any():
        raise LabelFileError(
            "labels are out of range",
            where=path,
            expected="coords 0 to 1, distinct whole class numbers, probabilities 0 to 1",
        )
    if labels.dtype == np.float16 and numbers.max() > MAX_HALF_CLASSES:
        raise LabelFileError(
            "class numbers in half precision are not exact",
            where=path,
            expected=f"classes up to {MAX_HALF_CLASSES}",
            got=int(numbers.max()),
            hint="label again without --use_fp16",
        )
    return ImageFile(kind=kind, coords=coords, flips=flips, classes=numbers.astype(np.int32), values=values)


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Source of batches for a `PoolPlan`, called with indices of image groups.

    files: (image id, path), sorted. crops: number of crops per image. skip_bad: skip damaged files.
    """

    root: Path
    files: Sequence[tuple[int, Path]]
    crops: int
    target: Target
    codec: TopKCodec
    skip_bad: bool

    def __call__(self, groups: Sequence[int]) -> Iterator[EncodedBatch | Skipped]:
        size = self.target.header.batch_size
        for group in groups:
            members = self.files[group * size : (group + 1) * size]
            read: dict[int, ImageFile] = {}
            for image, path in members:
                try:
                    read[image] = self._read(path)
                except LabelFileError as error:
                    if not self.skip_bad:
                        raise
                    yield Skipped(path.relative_to(self.root).as_posix(), error.problem)
            for crop in range(self.crops) if read else ():
                yield self._batch(BatchKey(crop, group), read, where=f"{members[0][1].parent}, crop {crop}")

    def shards(self) -> list[Shard]:
        groups = range(-(-len(self.files) // self.target.header.batch_size))
        size = max(1, raw_batches_per_shard(self.target.header) // self.crops)
        cut = [tuple(groups[start : start + size]) for start in range(0, len(groups), size)]
        return [Shard(part, len(part) * self.crops) for part in cut]

    def item(self, key: BatchKey) -> int:
        return key.batch

    def _read(self, path: Path) -> ImageFile:
        found = read_image_file(path)
        expected = f"{self.crops} crops, top {self.codec.k} in {self.codec.value_dtype}"
        got = f"{len(found.values)} crops, top {found.values.shape[1]} in {found.values.dtype}"
        if expected != got:
            raise LabelFileError("labels differ from other files", where=path, expected=expected, got=got)
        self.target.require_class(int(found.classes.max()), where=path)
        return found

    def _batch(self, key: BatchKey, files: Mapping[int, ImageFile], *, where: str) -> EncodedBatch:
        crop, count, images = key.epoch, self.target.header.classes, np.array(list(files), np.int32)
        coords = np.stack([file.coords[crop] for file in files.values()])
        views = ViewBatch(
            key=key,
            images=images,
            crops=crops_in_pixels(coords, image_sides(self.target.images, images), images, where=where),
            flips=np.stack([file.flips[crop] for file in files.values()]),
        )
        values = np.stack([file.values[crop] for file in files.values()])
        classes = np.stack([file.classes[crop] for file in files.values()])
        left = np.maximum(1.0 - values.astype(np.float64).sum(axis=1), 0.0)
        tail = (left / max(count - self.codec.k, 1)).astype(np.float32)
        return EncodedBatch.make(views, self.codec.encode_sparse(values, classes, tail, classes=count))


def plan_images(request: Request, *, skip_bad: bool) -> ImageFiles:
    """Plan the pool that the import writes, and match label files with images."""
    folder, options, notes = request.folder, request.options, request.notes
    if not folder.by_image:
        raise LabelSourceError("no FKD label files", where=folder.root, expected=request.layout.summary)
    files = _files_of_images(request)
    sample = _typical([path for _, path in files])
    crops, kept = sample.classes.shape
    classes = options.classes or import_target.likely_classes(request, int(sample.classes.max()))
    side, resize = import_target.output_size(request), import_target.resize(request)
    if sample.kind != "hard":
        import_target.temperature(request)
    header = PoolHeader(
        classes=classes,
        batch_size=options.batch_size,
        augmentation=Augmentation(
            output_height=side, output_width=side, resize=resize, flip_probability=import_target.PROGRAM_FLIPS
        ),
        label_kind=request.layout.label_kind,
        teachers=import_target.teachers(request, classes, request.layout.programs.get(classes)),
    )
    codec = TopKCodec(k=kept, value_bits=sample.values.dtype.itemsize * 8, label_kind="probabilities")
    labels = "hard labels" if sample.kind == "hard" else f"top {kept} probabilities"
    notes.found.append(f"{len(files)} images with {crops} crops each, {labels}")
    notes.assumed.append(
        f"batches of {options.batch_size} images (--batch-size); epoch c holds crop c of every image"
    )
    notes.results["label_type"] = sample.kind
    return ImageFiles(
        root=folder.root,
        files=files,
        crops=crops,
        target=Target(header=header, codec=codec, images=request.images),
        codec=codec,
        skip_bad=skip_bad,
    )


def _typical(paths: Sequence[Path]) -> ImageFile:
    """Return a file of the most common kind among the first files. --skip-bad leaves out other kinds."""
    read: dict[object, list[ImageFile]] = {}
    for path in paths[:_SAMPLED]:
        with contextlib.suppress(LabelFileError):
            file = read_image_file(path)
            read.setdefault((file.kind, file.values.shape, file.values.dtype), []).append(file)
    return max(read.values(), key=len)[0] if read else first_readable(paths, read_image_file)


def _files_of_images(request: Request) -> list[tuple[int, Path]]:
    """Match label files with images by class folder and name. Return sorted pairs (image id, path)."""
    folder, images = request.folder, request.images
    known: dict[tuple[str, str], int] = {}
    for index, text in enumerate(images.paths):
        path = PurePosixPath(text)
        name = path.parts[0], path.name.split(".")[0]  # The program cuts names at the first dot.
        if name in known and name in folder.by_image:
            raise ImageMismatchError(
                "two images share a label file: their names are equal up to the first dot",
                where=folder.by_image[name],
                got=f"{images.paths[known[name]]} and {text}",
                hint="rename one of the images and label again",
            )
        known[name] = index
    unknown = sorted(name for name in folder.by_image if name not in known)
    if unknown:
        raise ImageMismatchError(
            f"labels for {len(unknown)} images that are not in the folder",
            where=folder.by_image[unknown[0]],
            expected=f"an image {'/'.join(unknown[0])}",
            hint="give the folder of the images that were labelled",
        )
    unlabelled = len(images) - len(folder.by_image)
    if unlabelled and not request.options.allow_extra_images:
        raise ImageMismatchError(
            f"{unlabelled} of {len(images)} images have no labels",
            where=folder.root,
            hint="give the folder of the images that were labelled, or pass --allow-extra-images",
        )
    if unlabelled:
        request.notes.odd.append(f"{unlabelled} of {len(images)} images have no labels")
    return sorted((known[name], path) for name, path in folder.by_image.items())


@dataclass(frozen=True, kw_only=True, repr=False)
class ImportReport(Result):
    """Result of an import. found, assumed, odd: facts, assumptions and warnings, one sentence each.

    holes: skipped files and why. source_bytes: size of the label files.
    """

    format: str
    source: str
    pool: str
    batches: int
    rows: int
    epochs: int
    images: int
    classes: int
    codec: str
    content_digest: str
    source_bytes: int
    pool_bytes: int
    found: tuple[str, ...]
    assumed: tuple[str, ...]
    odd: tuple[str, ...]
    holes: tuple[dict[str, str], ...]


def detect_format(source: str | os.PathLike[str], label_format: str = AUTO) -> str:
    """Return the name of a folder's layout. Raises if the folder cannot be imported; reads no images."""
    return _layout_of(list_label_folder(Path(source).absolute()), label_format).name


def require_importable(
    pool: str | os.PathLike[str], *sources: str | os.PathLike[str], overwrite: bool
) -> None:
    """Raise if an import must not write to the path `pool`, e.g. because it overlaps a source."""
    require_output(pool, *sources, overwrite=overwrite, step=LineageStep(operation="import", parameters={}))


@writes_pools
def import_labels(
    source: str | os.PathLike[str],
    pool: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | ImageTable,
    label_format: str = AUTO,
    options: ImportOptions | None = None,
    executor: Executor = ONE_PROCESS,
    skip_bad: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Convert a label folder into a pool. No code in the folder is run.

    label_format: a key of LAYOUTS or SAME_LAYOUT, or ``auto`` to detect it.
    images: the folder of the images that were labelled (one directory per class), or its `ImageTable`.
    skip_bad: skip damaged and missing files, and record them in the pool.
    """
    out = pool_path(pool)
    require_importable(
        out, *((source,) if isinstance(images, ImageTable) else (source, images)), overwrite=overwrite
    )
    folder = list_label_folder(Path(source).absolute())
    request = Request(
        layout=_layout_of(folder, label_format),
        folder=folder,
        images=images if isinstance(images, ImageTable) else scan_image_folder(images, decode=False),
        options=options or ImportOptions(),
    )
    if folder.unknown:
        shown = ", ".join(folder.unknown[:3])
        request.notes.odd.append(f"{len(folder.unknown)} files that are not label files: {shown}")
    plan_files = plan_batches if request.layout.file else plan_images
    files = plan_files(request, skip_bad=skip_bad)
    shards = files.shards()
    step = lineage_step(
        "import",
        None,
        request.options,
        format=request.layout.name,
        source=folder.root.name,  # The full path is not portable.
        assumed=request.notes.assumed,
        planned_batches=sum(shard.batches for shard in shards),
        **request.notes.results,
    )
    if other := _other_labels(files, out, step):
        if not overwrite:
            problem = f"different labels were imported into this pool earlier: {other}"
            raise StagingMismatchError(problem, where=out, hint=OVERWRITE_HINT)
        with unfinished(out) as work:
            work.delete()
    target = files.target
    plan = PoolPlan(
        out=out,
        header=replace(target.header, lineage=(step,)),
        images=target.images,
        codec=target.codec,
        source=files,
        shards=shards,
        settings={"command": "import"},
        content_digest="of other labels" if other else None,
    )
    manifest = run_plan(plan, executor=executor, overwrite=overwrite, progress=progress)
    return _report(request, out, manifest)


def _layout_of(folder: LabelFolder, name: str) -> Layout:
    """Return the layout of this name or program. "auto" detects the layout from file names and one file."""
    name = SAME_LAYOUT.get(name, name)
    if name in LAYOUTS:
        return LAYOUTS[name]
    if name != AUTO:
        known = ", ".join((*LAYOUTS, *SAME_LAYOUT))
        raise InvalidArgumentError("unknown label format", expected=known, got=name)
    layouts = [
        layout
        for layout in LAYOUTS.values()
        if folder.files(layout) and (layout.name != "lpld" or folder.has_ids(layout))
    ]
    if not layouts:
        raise LabelSourceError(
            "no label files of a known layout",
            where=folder.root,
            expected="epoch_E/batch_B.tar, epoch_E.tar, batch_N.tar or CLASS/IMAGE.tar",
            got=", ".join(folder.unknown[:3]) or "nothing",
        )
    if not layouts[0].file:
        return layouts[0]

    def fitting(path: Path) -> Layout:
        saved = read_batches(path, layouts[0].file)

        def fit(layout: Layout) -> Layout:
            parse_batch(saved[0], layout.items, where=path)
            return layout

        return first_readable(layouts, fit)

    return first_readable(folder.files(layouts[0]), fitting)


def _other_labels(files: BatchFiles | ImageFiles, out: Path, step: LineageStep) -> str:
    """Return how the labels differ from labels imported earlier; "" if they are the same or none exist."""
    done: dict[BatchKey, bytes] = {}
    found = finished_before(out, step)
    if found is not None:
        if found.header.lineage[-1].parameters.get("holes") and not files.skip_bad:
            return "damaged or missing files were skipped"
        with PoolReader(out) as pool:
            done = dict(zip(pool.keys, pool.index.digests(), strict=True))
    elif partial_directory(out).is_dir():
        with unfinished(out) as work:
            for record in work.records(work.numbers(), checked=False).values():
                if not record.skipped:
                    done |= zip(record.keys, arrow.binaries(record.index["digest"]), strict=True)
    items: list[Any] = sorted({files.item(key) for key in done})
    reader = replace(files, skip_bad=True)
    for batch in reader(items[:: max(1, len(items) // _COMPARED)]):
        if isinstance(batch, EncodedBatch) and done.get(batch.key, batch.digest) != batch.digest:
            return f"{batch.key} differs from the label files"
    return ""


def _report(request: Request, out: Path, manifest: Manifest) -> ImportReport:
    folder, notes, counts = request.folder, request.notes, manifest.counts
    return ImportReport(
        format=request.layout.name,
        source=str(folder.root),
        pool=str(out),
        batches=counts.batches,
        rows=counts.rows,
        epochs=counts.epochs,
        images=counts.images,
        classes=manifest.header.classes,
        codec=manifest.codec.name,
        content_digest=manifest.content_digest,
        source_bytes=sum(path.stat().st_size for path in folder.files(request.layout)),
        pool_bytes=pool_bytes(manifest),
        found=tuple(notes.found),
        assumed=tuple(notes.assumed),
        odd=tuple(notes.odd),
        holes=tuple(manifest.header.lineage[-1].parameters.get("holes", ())),
    )
