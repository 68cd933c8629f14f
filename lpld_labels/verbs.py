"""The verbs that need no torch: prune, encode, plan, import_labels, export, copy, report, summary.

A verb's keywords are the fields of its call dataclass (`verb` in settings.py); the command line's options are
the same fields. Importing this module imports neither Arrow nor NumPy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lpld_labels.errors import InvalidArgumentError, UsageError
from lpld_labels.interop.settings import ExportOptions, ImportOptions
from lpld_labels.io.addresses import Location, redact
from lpld_labels.options import ExecutorOptions, FromPool, NewPool, Shows, Writes, listed
from lpld_labels.progress import progress_of
from lpld_labels.results import Result
from lpld_labels.settings import Setting, part_of, verb
from lpld_labels.transforms.settings import (
    Amount,
    EncodeSettings,
    PlanChoices,
    PlanSettings,
    PruneChoices,
    PruneSettings,
)

if TYPE_CHECKING:
    from lpld_labels.format.manifest import Coverage, Manifest
    from lpld_labels.inspect.compare import Comparison
    from lpld_labels.inspect.summary import PoolSummary
    from lpld_labels.interop.exporting import ExportReport
    from lpld_labels.interop.importing import ImportReport
    from lpld_labels.transforms.encode import EncodeResult
    from lpld_labels.transforms.plan import BudgetPlan
    from lpld_labels.transforms.remote_output import Copied

Pools = Annotated[
    Location | Sequence[Location], Setting("A pool, or several: paths or addresses.", option=False)
]


@dataclass(frozen=True)
class PoolToPool(FromPool):
    """Base class for the arguments of verbs that read a pool and write a new pool."""

    out: NewPool


@dataclass(frozen=True, kw_only=True)
class _PruneCall(Writes, PruneChoices, PoolToPool):
    dry_run: Annotated[bool, Setting("Report the plan with bytes and class coverage; write nothing.")] = False


@dataclass(frozen=True, kw_only=True, repr=False)
class Pruned(Result):
    """Result of `prune`. In a dry run, `out` is None and bytes["kept"] is an upper limit."""

    pool: str
    parameters: dict[str, Any]
    batches: dict[str, int]
    bytes: dict[str, float]
    out: str | None
    content_digest: str | None
    coverage: dict[str, Coverage]
    manifest: Manifest | None = field(repr=False)


@verb(_PruneCall)
def prune(call: _PruneCall) -> Pruned:
    """Write a smaller pool OUT that keeps some batches of POOL, bit for bit.

    Incomplete batches are dropped first. The random order depends only on the seed and the batches' keys,
    so prunings nest: pruning 10x and then 4x equals pruning 40x at once.

    \b
    Metrics, averaged over a batch or epoch; high is easy (z logits, y the image's class):
      correct      share of views with argmax z = y
      diff         gap between the two largest logits
      diff_signed  z_y minus the largest other logit
      cut_ratio    weight of the view itself in CutMix or MixUp
      confidence   largest softmax value
    """
    from lpld_labels.pool.publish import coverage_of, views_per_image
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.pipeline import lineage_step, require_output
    from lpld_labels.transforms.prune import plan_prune, write_pruned

    shown = progress_of(call.progress)
    # Batches are read in file order: one block of views and two open shards are enough.
    with PoolReader(call.pool, view_cache_bytes=0, open_shards=2) as reader:
        before = pool_bytes(reader.manifest)
        budget = None if call.budget is None else Amount.of_any(call.budget, images=False)
        limit = None if budget is None else budget.bytes(pool=before)
        settings = part_of(PruneSettings, call, budget=limit)
        done = lineage_step("prune", reader.manifest.content_digest, settings)
        require_output(call.out, reader.location, overwrite=call.overwrite, step=done)
        with shown.stage("scoring batches") as progress:
            plan = plan_prune(reader, settings, progress=progress)
        manifest = None
        if not call.dry_run:
            with shown.stage("copying batches") as progress:
                manifest = write_pruned(plan, call.out, overwrite=call.overwrite, progress=progress)
        after = plan.most_bytes if manifest is None else pool_bytes(manifest)
        kept = coverage_of(views_per_image(reader, plan.kept), reader.images.classes)
        return Pruned(
            pool=reader.location,
            parameters=asdict(plan.settings) | plan.results,
            batches={"pool": len(reader), "candidates": len(plan.candidates), "kept": plan.count},
            bytes={"pool": before, "kept": after, "smaller": round(before / after, 3)},
            out=None if manifest is None else redact(call.out),
            content_digest=None if manifest is None else manifest.content_digest,
            coverage={"pool": reader.manifest.coverage, "kept": kept},
            manifest=manifest,
        )


@dataclass(frozen=True, kw_only=True)
class _EncodeCall(Writes, ExecutorOptions, EncodeSettings, PoolToPool):
    pass


@verb(_EncodeCall)
def encode(call: _EncodeCall) -> EncodeResult:
    """Write POOL to OUT with labels in another codec, or with views stored differently.

    With --views alone, labels are copied unchanged. Views that `build` drew need not be stored: readers
    draw the same ones again. Run the same command again to resume an interrupted one.

    "Kept" is the share of the labels' information that survives at a temperature T, 1 - KL(p||q) /
    KL(p||uniform), measured on rows the codec was not fitted to.

    \b
    Codecs: bytes per row, kept at T = 1 and at T = 20 on ImageNet-1K logits (fp16: 2000 bytes)
      f16      1697   1     1      lossless, the default of every other command
      int8     1008   1     1      256 levels per row, scaled to the row; int6: 64, int4: 16
      klt       157   .991  .960   principal directions, quantised and entropy coded; argmax kept
      topk:50   109   .959  .410   the 50 largest labels of a row and the mass of the rest

    f16, int8 and klt suit training at every temperature, also with a schedule; topk only low temperatures.
    """
    call.require_shared(call.out)

    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.encode import encode_pool

    with (
        PoolReader(call.pool, view_cache_bytes=0, open_shards=2) as reader,
        call.opened() as executor,
        progress_of(call.progress).stage("encoding batches") as progress,
    ):
        return encode_pool(
            reader,
            call.out,
            part_of(EncodeSettings, call),
            executor=executor,
            overwrite=call.overwrite,
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class _PlanCall(Writes, PlanChoices, FromPool):
    images: Annotated[
        Location | None, Setting("The labelled image folder. A budget of 2x-images is twice its size.")
    ] = None
    apply: Annotated[Location | None, Setting("Write the recommended pool to this path or address.")] = None
    jobs: Annotated[int, Setting("Number of processes for --apply.", ge=1)] = 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned(Result):
    """Result of `plan`. rows: ways to fit the budget as JSON, most views first. plan: the BudgetPlan."""

    pool: str
    budget: int
    bytes: dict[str, int | None]
    views_per_image: float
    min_fidelity: float
    temperature: float
    rows: list[dict[str, Any]]
    recommended: dict[str, Any]
    applied: dict[str, Any] | None
    plan: BudgetPlan = field(repr=False)


@verb(_PlanCall)
def plan(call: _PlanCall) -> Planned:
    """Find the prune ratio and codec with which POOL fits a byte budget.

    For every codec the table shows the smallest prune ratio that fits; bytes count labels, views, codec
    tables and the image table. The recommended row has the most views per image among those that keep
    enough of each label (--min-fidelity). --apply writes that pool. "klt 0.97" is fitted to keep 0.97;
    the "kept" columns show what it reaches on other labels of the pool.

    Training at a temperature that falls over the epochs (train --temperature-schedule) uses labels at all
    of these temperatures: check every "kept" column. Full logits and klt suit every temperature, top-k
    only low ones.
    """
    budget = Amount.of_any(call.budget, images=True)
    if budget.of == "images" and call.images is None:
        raise UsageError("a budget such as 1x-images requires --images DIR")
    if call.overwrite and call.apply is None:
        raise UsageError("--overwrite requires --apply OUT")
    from lpld_labels.exec.local import LocalExecutor
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.pipeline import require_output
    from lpld_labels.transforms.plan import applied_step, apply_plan, image_bytes, plan_budget

    shown = progress_of(call.progress)
    with PoolReader(call.pool, view_cache_bytes=0) as reader:
        size, counts = pool_bytes(reader.manifest), reader.manifest.counts
        image_size = None if call.images is None else image_bytes(Path(call.images), reader.images)
        limit = budget.bytes(pool=size, images=image_size or 0)
        settings = part_of(PlanSettings, call, budget=limit)
        if call.apply is not None:
            step = applied_step(reader, settings)
            require_output(call.apply, reader.location, overwrite=call.overwrite, step=step)
        with shown.stage("trying codecs") as progress:
            found = plan_budget(reader, settings, progress=progress)
        applied = None
        if call.apply is not None:
            with shown.stage("encoding batches") as progress:
                manifest = apply_plan(
                    reader,
                    call.apply,
                    found,
                    executor=LocalExecutor(call.jobs),
                    overwrite=call.overwrite,
                    progress=progress,
                )
            applied = {
                "out": redact(call.apply),
                "bytes": pool_bytes(manifest),
                "batches": manifest.counts.batches,
                "fidelity": found.recommended.fidelity.as_json(),
                "content_digest": manifest.content_digest,
            }
        return Planned(
            pool=reader.location,
            budget=limit,
            bytes={"pool": size, "images": image_size},
            views_per_image=round(counts.rows / max(counts.images, 1), 3),
            min_fidelity=found.minimum,
            temperature=settings.temperature,
            rows=[row.as_json() for row in found.rows],
            recommended=found.recommended.as_json(),
            applied=applied,
            plan=found,
        )


@dataclass(frozen=True)
class _ImportCall(Writes, ImportOptions, ExecutorOptions):
    source: Annotated[Location, Setting("The label folder.", option=False)]
    out: NewPool
    images: Annotated[Location, Setting("Labelled images, one directory per class.")] = field(kw_only=True)
    format: Annotated[
        Literal[
            "auto", "sre2l", "cda", "cudd", "cv-dd", "fadrm", "lpld", "lpqld",
            "gvbsm", "prism", "edc", "wmdd", "hald", "fkd",
        ],
        Setting("Program that wrote the folder; auto detects it from the layout and one file."),
    ] = field(default="auto", kw_only=True)  # fmt: skip
    skip_bad: Annotated[
        bool, Setting("Skip damaged or missing files; they are reported and recorded in the pool.")
    ] = field(default=False, kw_only=True)


@verb(_ImportCall)
def import_labels(call: _ImportCall) -> ImportReport:
    """Turn the label folder SOURCE of another program into a pool OUT.

    Files are read as data: nothing in them is executed, and torch is not needed. Labels are imported bit for
    bit; crops are converted to the exact pixel rectangles that the program used. The report lists facts,
    assumptions and warnings; `verify --teacher` checks the assumptions.

    Run the same command again to resume after an interruption, or once a damaged file is repaired. Some files
    of finished batches are read again; if their labels differ, the import fails (--overwrite starts over).

    \b
    Formats:
      sre2l    epoch_E/batch_B.tar, no image ids (also cda, cudd, cv-dd, fadrm)
      lpld     the same with sampler_indices_epoch.json
      lpqld    batch_N.tar with sampler_indices_batch.json, top-k labels
      gvbsm    epoch_E/batch_B.tar with image ids in each batch, several teachers (also prism)
      edc      the same with patch indices
      wmdd     epoch_E/batch_B.tar with weights of rows, which --drop-weights leaves out
      hald     epoch_E.tar with sampler_indices_dict.pt, probabilities
      fkd      [[NAME/]train/]CLASS/IMAGE.tar, many crops of each image
    """
    call.require_shared(call.out)

    from lpld_labels.interop.importing import detect_format, import_labels, require_importable
    from lpld_labels.render.images import scan_image_folder

    shown = progress_of(call.progress)
    require_importable(call.out, call.source, call.images, overwrite=call.overwrite)
    found = detect_format(call.source, call.format)
    with call.opened() as executor:
        with shown.stage("reading images") as progress:
            table = scan_image_folder(call.images, decode=False, progress=progress)
        with shown.stage("importing batches") as progress:
            return import_labels(
                call.source,
                call.out,
                images=table,
                label_format=found,
                options=part_of(ImportOptions, call),
                executor=executor,
                skip_bad=call.skip_bad,
                overwrite=call.overwrite,
                progress=progress,
            )


@dataclass(frozen=True)
class _ExportCall(Writes, ExportOptions, FromPool):
    out: Annotated[Location, Setting("The new label folder.", option=False)]
    format: Annotated[
        Literal["sre2l", "lpld", "lpqld", "gvbsm"], Setting("Program that will read the folder.")
    ] = field(kw_only=True)


@verb(_ExportCall)
def export(call: _ExportCall) -> ExportReport:
    """Write POOL as a label folder OUT that older trainers load with plain torch.load.

    Any codec can be exported: labels are decoded. Importing the folder gives the same views and labels, and
    for an unpruned f16, f32 or topk pool the same content digest. sre2l and gvbsm folders cannot hold the
    header and may need import --output-size, --resize, --mean and --std. These formats number batches
    consecutively: an exported pruned pool imports with new batch numbers and another content digest. sre2l,
    which stores no image ids, requires images in the order that its trainers draw; the others accept any.

    Trainers have view size, normalisation, resize code and image order built in. For each way to call the
    trainer, a list says whether it replays the labelled views exactly, and if not, why.
    """
    if call.top_k is not None and call.format != "lpqld":
        raise UsageError("--top-k requires --format lpqld")

    from lpld_labels.interop.exporting import export_pool
    from lpld_labels.pool.reader import PoolReader

    with PoolReader(call.pool) as reader, progress_of(call.progress).stage("exporting batches") as progress:
        return export_pool(
            reader,
            call.out,
            label_format=call.format,
            options=part_of(ExportOptions, call),
            overwrite=call.overwrite,
            progress=progress,
        )


@dataclass(frozen=True)
class _CopyCall(Writes):
    pools: Pools
    out: Annotated[Location, Setting("The new pool; with unpack, the new image folder.", option=False)]
    _: KW_ONLY
    images: Annotated[Location | None, Setting("The labelled image folder, to store images in OUT.")] = None
    unpack: Annotated[bool, Setting("Extract only the images inside POOL, to a new folder OUT.")] = False


@dataclass(frozen=True, kw_only=True, repr=False)
class Unpacked(Result):
    """Result of `copy --unpack`. written: number of images written; those already there are kept."""

    pool: str
    folder: str
    images: int
    written: int


@verb(_CopyCall)
def copy(call: _CopyCall) -> Copied | Unpacked:
    """Copy POOL to OUT; both may be directories or addresses (s3://, https:// to read from, and others).

    Files already at OUT with the same digest are not sent again. Every file is verified by its digest on
    arrival, and the manifest is written last. Run the same command again to resume an interrupted copy.

    Several POOLs are merged: OUT has the batches of all, bit for bit. They must have the same images,
    teachers, settings and codec, and no batch in common, like the parts of one labelling run.

    With --images the pool carries its images: every file is verified by its digest and stored unchanged.
    train, verify and report then need no image folder. --unpack writes the folder again.
    """
    pools = listed(call.pools)
    if call.unpack:
        if len(pools) != 1 or call.images is not None or call.overwrite:
            raise UsageError("--unpack takes one POOL and a new folder OUT, and no other options")
        return _unpack(pools[0], call)
    from lpld_labels.transforms.copy import copy_pool

    shown = progress_of(call.progress)
    with shown.stage("copying") as progress, shown.stage("packing images") as image_progress:
        return copy_pool(
            pools,
            call.out,
            images=call.images,
            overwrite=call.overwrite,
            progress=progress,
            image_progress=image_progress,
        )


def _unpack(pool: Location, call: _CopyCall) -> Unpacked:
    from lpld_labels.pool.packing import packed_images
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.copy import unpack_images
    from lpld_labels.transforms.outputs import require_apart

    require_apart(call.out, pool)
    with PoolReader(pool) as reader:
        images = packed_images(reader)
        if images is None:
            raise InvalidArgumentError(
                "the pool does not contain its images",
                where=reader.location,
                hint="get the image folder it was labelled from; `copy --images` adds images to a pool",
            )
        with progress_of(call.progress).stage("writing images") as progress:
            written = unpack_images(images, call.out, progress=progress)
    return Unpacked(pool=redact(pool), folder=str(call.out), images=len(images.table), written=written)


@dataclass(frozen=True)
class _ReportCall(Shows):
    pools: Pools
    _: KW_ONLY
    out: Annotated[Location | None, Setting("The HTML file to write; only with a single pool.")] = None
    images: Annotated[
        Location | None,
        Setting("The labelled image folder, to show views; not needed if POOL carries its images."),
    ] = None
    recipe: Annotated[
        Sequence[str], Setting("Commands that reproduce the pool, to show on the page.", option=False)
    ] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class Reported(Result):
    """Result of `report`. views: number of views shown. rows_looked_at: number of labels in the sample."""

    page: str
    bytes: int
    warnings: list[str]
    views: int
    rows_looked_at: int


@verb(_ReportCall)
def report(call: _ReportCall) -> Reported | Comparison:
    """Write an HTML report on a pool, or compare several pools on the terminal.

    The page shows the pool's settings, size, views, labels, and warnings. Labels are read from a random
    sample, so that a pool of any size takes seconds; each chart says how many rows it covers. With images,
    and torch installed, views are shown as the student sees them. The page is one file that needs no network
    and no server.

    For several pools, the command prints the settings that differ, bytes, the fidelity of codecs, and which
    pool was made from which.
    """
    pools = listed(call.pools)
    if len(pools) > 1:
        for name, value in (("--images", call.images), ("--out", call.out)):
            if value is not None:
                raise UsageError(f"{name} requires a single pool")
    elif call.out is None:
        raise UsageError("Missing option '--out'; or give several pools.")
    from lpld_labels.inspect.compare import compare_pools
    from lpld_labels.inspect.page import require_page_place, save_page
    from lpld_labels.inspect.report import make_report, report_page
    from lpld_labels.pool.reader import PoolReader

    images = None if call.images is None else Path(call.images)
    if call.out is not None:
        require_page_place(Path(call.out), pools[0], *filter(None, [images]))
    shown = progress_of(call.progress)
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(PoolReader(pool)) for pool in pools]
        progress = stack.enter_context(
            shown.stage("comparing pools" if call.out is None else "reading a sample")
        )
        if call.out is None:
            return compare_pools(readers, progress=progress)
        made = make_report(readers[0], images=images, recipe=call.recipe, progress=progress)
    data = report_page(made)
    save_page(Path(call.out), data)
    return Reported(
        page=str(call.out),
        bytes=len(data),
        warnings=list(made.warnings),
        views=len(made.cards),
        rows_looked_at=len(made.sample.rows),
    )


@verb(FromPool)
def summary(call: FromPool) -> PoolSummary:
    """Return a pool's contents and size, as `lpld-labels inspect` shows them. Reads only the manifest."""
    from lpld_labels.inspect.summary import summarise

    return summarise(call.pool)
