"""How a pool is spread: small histograms of views and labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels.inspect.pages.charts import Bar, Chart, bars, histogram
from lpld_labels.inspect.pages.numbers import percent
from lpld_labels.inspect.report.facts import PoolFacts
from lpld_labels.inspect.report.sample import OTHER, OWN, PARTNER, Sample

BINS = 20
Numbers = npt.NDArray[Any]


def spread_charts(facts: PoolFacts, sample: Sample) -> list[Chart]:
    """Return the charts; those of labels say over how many rows they were taken."""
    rows = sample.rows
    over = f"over all {len(rows):,} rows" if sample.whole else f"over a random sample of {len(rows):,} rows"
    mixed = rows.strength[~np.isnan(rows.strength)]
    bits = float(np.log2(facts.summary.classes))
    return [
        _of(
            "Views per image",
            "How often each image was seen as itself.",
            facts.image_views,
            "views",
            "images",
        ),
        _of(
            "Views per class",
            "How often images of each class were seen.",
            facts.class_views[facts.class_images > 0],
            "views",
            "classes",
        ),
        _epochs(facts),
        _of(
            "Label entropy",
            f"How undecided labels are at temperature 1, {over}; at most {bits:.3g} bits.",
            rows.entropy,
            "bits",
            "labels",
            within=(0.0, max(bits, 1e-9)),
        ),
        _of(
            "Confidence",
            f"Probability of the strongest class at temperature 1, {over}.",
            rows.confidence,
            "probability",
            "labels",
            within=(0.0, 1.0),
        ),
        _of(
            "Crop area",
            f"Share of the source image that a view shows, {over}.",
            rows.area,
            "share",
            "views",
            within=(0.0, max(1.0, float(rows.area.max(initial=1.0)))),
        ),
        _of(
            "Mix strength",
            f"Weight of the view itself in its mix, {over}; {len(mixed):,} of them were mixed.",
            mixed,
            "weight",
            "views",
            within=(0.0, 1.0),
        ),
        _agreement(sample, over),
    ]


def _agreement(sample: Sample, over: str) -> Chart:
    agreement = sample.rows.agreement
    names = {OWN: "own class strongest", PARTNER: "partner's class strongest", OTHER: "another class"}
    items = []
    for colour, (code, name) in enumerate(names.items()):
        count = int((agreement == code).sum())
        share = count / max(len(agreement), 1)
        items.append(Bar(label=name, value=share, text=f"{percent(share)} ({count:,})", colour=colour))
    says = f"Whose class the label puts first, {over}."
    title = "Agreement with the true class"
    return bars(title, says, items if len(agreement) else [], headers=("share of labels",))


def _epochs(facts: PoolFacts) -> Chart:
    epochs, batches = facts.epochs, facts.epoch_batches
    span = f"{int(epochs[0])} to {int(epochs[-1])}" if len(epochs) else "none"
    says = f"Label batches of {len(epochs):,} epochs (numbers {span})."
    edges = _edges(epochs)
    counts, _ = np.histogram(epochs, edges, weights=batches)
    return histogram(
        "Epochs covered",
        says,
        edges.tolist(),
        counts.astype(int).tolist(),
        unit="epoch",
        counted="batches",
        whole=True,
    )


def _of(
    title: str,
    says: str,
    values: Numbers,
    unit: str,
    counted: str,
    *,
    within: tuple[float, float] | None = None,
) -> Chart:
    finite = values[np.isfinite(values)]
    edges = np.linspace(*within, BINS + 1) if within is not None else _edges(finite)
    if within is not None:
        # A confidence of 1 + rounding belongs to the last column.
        finite = np.clip(finite, *within)
    counts, _ = np.histogram(finite, edges)
    whole = within is None
    return histogram(title, says, edges.tolist(), counts.tolist(), unit=unit, counted=counted, whole=whole)


def _edges(values: Numbers) -> npt.NDArray[np.float64]:
    """Return edges for whole numbers: a column for each, or for equally many of them."""
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    width = -(-(high - low + 1) // BINS)
    # A few empty columns beside: a single one would fill the chart and look like nothing.
    low = max(low - 2, 0) if high - low < 4 else low
    columns = max(-(-(high - low + 1) // width), 5)
    return low + width * np.arange(columns + 1, dtype=np.float64)
