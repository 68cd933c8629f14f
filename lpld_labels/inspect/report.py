"""The report on one pool: what it is, its size, its views and labels, as one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.exec.job import Progress
from lpld_labels.inspect.charts import Bar, Chart, bars, histogram
from lpld_labels.inspect.page import render_page
from lpld_labels.inspect.pool_charts import accuracy_chart, fidelity_chart, published, size_charts
from lpld_labels.inspect.runs import Run, run_charts, run_warnings
from lpld_labels.inspect.sample import OTHER, OWN, PARTNER, PoolFacts, Sample, gather_facts, take_sample
from lpld_labels.inspect.summary import PoolSummary, step_words
from lpld_labels.inspect.text import human_bytes, percent, shortened
from lpld_labels.inspect.view_cards import ShownView, shown_views, view_card
from lpld_labels.inspect.warnings import pool_warnings
from lpld_labels.pool.packed_images import packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import find_images

_FILES_SHOWN = 40
_BINS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything the page shows.

    against: the pool whose labels this one's were measured by. recipe: the commands that make the pool again.
    """

    facts: PoolFacts
    sample: Sample
    shown: Sequence[ShownView]
    against: str | None
    runs: Sequence[Run]
    warnings: Sequence[str]
    recipe: Sequence[str]


def make_report(
    pool: PoolReader,
    *,
    images: Path | None = None,
    against: PoolReader | None = None,
    runs: Sequence[Run] = (),
    names: Sequence[str] | None = None,
    recipe: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Look at a pool: its manifest, its index and a sample of label batches. names: of the classes.

    images: its image folder, for the pictures; a pool that carries its images needs none.
    against: the pool whose labels this one's came from. recipe: commands to show that make the pool again.
    """
    facts = gather_facts(pool, names=names)
    source = packed_images(pool) if images is None else find_images(pool, images)
    sample = take_sample(pool, against=against, progress=progress)
    return Report(
        facts=facts,
        sample=sample,
        shown=shown_views(pool, sample, source),
        against=None if against is None else str(against.location),
        runs=runs,
        warnings=[*pool_warnings(facts, sample), *run_warnings(runs, pool.manifest.content_digest)],
        recipe=recipe,
    )


def report_page(report: Report) -> bytes:
    """Return the report as an HTML file."""
    facts, summary, fidelity = report.facts, report.facts.summary, report.sample.fidelity
    files = summary.manifest.files[:_FILES_SHOWN]
    cards = [view_card(facts, report.sample, view, outlined=bool(report.against)) for view in report.shown]
    classes = sorted({card["class_number"] for card in cards})
    images = sorted({card["image_number"] for card in cards})
    batches = sorted({card["batch_number"] for card in cards})
    return render_page(
        "report.html",
        report=report,
        summary=summary,
        steps=_steps(summary),
        settings=[(name, shortened(value, 400)) for name, value in summary.settings().items()],
        files=[(shortened(file.path), human_bytes(file.bytes), file.digest) for file in files],
        size=[*_size_charts(summary), _among_published(summary, report.runs)],
        cards=cards,
        filters={
            "class": [(number, facts.names[number]) for number in classes],
            "image": [(number, facts.images.paths[number]) for number in images],
            "batch": [(number, str(report.sample.keys[number])) for number in batches],
        },
        spread=_spread_charts(facts, report.sample),
        kept=[] if fidelity is None else [fidelity_chart([("this pool", report.against or "", fidelity)])],
        curves=run_charts(report.runs),
    )


def _steps(summary: PoolSummary) -> list[dict[str, Any]]:
    """Return each step of the lineage: operation, digest of the pool it made, and what is recorded."""
    lineage = summary.manifest.header.lineage
    digests = [step.parent_digest or "" for step in lineage[1:]] + [summary.manifest.content_digest]
    return [
        {"operation": step.operation, "digest": digest, "known": step_words(step)}
        for step, digest in zip(lineage, digests, strict=False)
    ]


# Size


def _size_charts(summary: PoolSummary) -> list[Chart]:
    total, original, counts = summary.total_bytes, summary.pickle_bytes, summary.manifest.counts
    than = "more than" if original < total else f"{original / total:.2f} times less than"
    says = (
        f"{summary.bytes_per_row:,.1f} bytes per row, {human_bytes(summary.bytes_per_image)} per image; "
        f"{than} one pickle per batch. Plain fp16 labels alone would be {human_bytes(summary.fp16_bytes)}."
    )
    pools = [
        ("this pool", summary.components, counts),
        ("original layout", summary.pickle_components, counts),
    ]
    return size_charts(pools, says)


def _among_published(summary: PoolSummary, runs: Sequence[Run]) -> Chart:
    manifest, total = summary.manifest, summary.total_bytes
    own = [run for run in runs if run.pool in (None, manifest.content_digest)]
    dataset, others = published(manifest.header.classes)
    if not others:
        dataset, others = published(1000)
    classes, each = manifest.header.classes, human_bytes(summary.bytes_per_image)
    return accuracy_chart(
        "Among published pools",
        f"Label bytes and top-1 of ResNet-18 on {dataset} as published; the line is this pool, "
        f"{manifest.counts.images:,} images of {classes:,} classes, {each} per image.",
        [("students of this pool", total, own)],
        others=others,
        line=(float(total), "this pool"),
    )


# Labels and views


def _spread_charts(facts: PoolFacts, sample: Sample) -> list[Chart]:
    rows = sample.rows
    over = f"over {'all' if sample.whole else 'a random sample of'} {len(rows):,} rows"
    mixed = rows.strength[~np.isnan(rows.strength)]
    bits = float(np.log2(facts.summary.manifest.header.classes))
    area = max(1.0, float(rows.area.max(initial=1.0)))
    epochs = facts.epochs
    span = f"{int(epochs[0])} to {int(epochs[-1])}" if len(epochs) else "none"
    of_epochs = f"Label batches of {len(epochs):,} epochs (numbers {span})."
    of_images = "How often each image was seen as itself."
    of_classes = "How often images of each class were seen."
    undecided = f"How undecided labels are at temperature 1, {over}; at most {bits:.3g} bits."
    strongest = f"Probability of the strongest class at temperature 1, {over}."
    shown = f"Share of the source image that a view shows, {over}."
    weight = f"Weight of the view itself in its mix, {over}; {len(mixed):,} of them were mixed."
    seen = facts.class_views[facts.class_images > 0]
    return [
        _whole_numbers("Views per image", of_images, facts.image_views, None, "views", "images"),
        _whole_numbers("Views per class", of_classes, seen, None, "views", "classes"),
        _whole_numbers("Epochs covered", of_epochs, epochs, facts.epoch_batches, "epoch", "batches"),
        _shares("Label entropy", undecided, rows.entropy, max(bits, 1e-9), "bits", "labels"),
        _shares("Confidence", strongest, rows.confidence, 1.0, "probability", "labels"),
        _shares("Crop area", shown, rows.area, area, "share", "views"),
        _shares("Mix strength", weight, mixed, 1.0, "weight", "views"),
        _agreement(rows.agreement, over),
    ]


def _agreement(agreement: npt.NDArray[np.int64], over: str) -> Chart:
    names = {OWN: "own class strongest", PARTNER: "partner's class strongest", OTHER: "another class"}
    items = []
    for colour, (code, name) in enumerate(names.items()):
        count = int((agreement == code).sum())
        share = count / max(len(agreement), 1)
        items.append(Bar(label=name, value=share, text=f"{percent(share)} ({count:,})", colour=colour))
    says = f"Whose class the label puts first, {over}."
    found = items if len(agreement) else []
    return bars("Agreement with the true class", says, found, headers=("share of labels",))


def _shares(
    title: str, says: str, values: npt.NDArray[np.float64], most: float, unit: str, counted: str
) -> Chart:
    """Return a histogram of numbers from 0 to `most`."""
    edges = np.linspace(0, most, _BINS + 1)
    # A confidence of 1 + rounding belongs to the last column.
    counts, _ = np.histogram(np.clip(values[np.isfinite(values)], 0, most), edges)
    return histogram(title, says, edges.tolist(), counts.tolist(), unit=unit, counted=counted)


def _whole_numbers(
    title: str,
    says: str,
    values: npt.NDArray[np.int64],
    weights: npt.NDArray[np.int64] | None,
    unit: str,
    counted: str,
) -> Chart:
    """Return a histogram with a column for each whole number, or for equally many of them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    width = -(-(high - low + 1) // _BINS)
    # A few empty columns beside: a single one would fill the chart and look like nothing.
    low = max(low - 2, 0) if high - low < 4 else low
    columns = max(-(-(high - low + 1) // width), 5)
    edges = low + width * np.arange(columns + 1, dtype=np.float64)
    counts, _ = np.histogram(values, edges, weights=weights)
    columns_of = counts.astype(int).tolist()
    return histogram(title, says, edges.tolist(), columns_of, unit=unit, counted=counted, whole=True)
