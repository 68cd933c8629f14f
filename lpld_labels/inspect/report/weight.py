"""What a pool weighs: by component, beside the original layout, and among published pools."""

from __future__ import annotations

from collections.abc import Sequence

from lpld_labels.format.schema import COMPONENTS, Component
from lpld_labels.inspect.pages.charts import Bar, Chart, Series, bars, plot
from lpld_labels.inspect.pages.numbers import human_bytes
from lpld_labels.inspect.report.published import Published, published_for
from lpld_labels.inspect.report.runs import Run
from lpld_labels.inspect.summary import PICKLE_BATCH_OVERHEAD, PICKLE_ROW_BYTES, PoolSummary

COMPONENT_NAMES: dict[str, str] = {
    "crop": "crop coordinates",
    "flip": "flip",
    "mix_index": "mix index",
    "mix_strength": "mix strength",
    "mix_box": "mix box, cut-out, patches",
    "labels": "labels",
    "codec": "codec tables",
    "keys": "keys (epoch, batch, slot, image)",
    "container": "container (footers, indexes, image table)",
}


def original_layout(summary: PoolSummary) -> dict[Component, int]:
    """Return the bytes by component of one torch.save file per batch; mix strength and box are container."""
    mixed = summary.augmentation.mix != "none"
    sizes: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    sizes["labels"] = summary.bytes.logical_fp16
    sizes["crop"] = PICKLE_ROW_BYTES["crop"] * summary.rows
    sizes["flip"] = PICKLE_ROW_BYTES["flip"] * summary.rows
    sizes["mix_index"] = PICKLE_ROW_BYTES["mix_index"] * summary.rows if mixed else 0
    sizes["container"] = PICKLE_BATCH_OVERHEAD * summary.batches
    return sizes


def weight_charts(summary: PoolSummary, runs: Sequence[Run] = ()) -> list[Chart]:
    """Return totals, components and the place among published pools."""
    return [_totals(summary), _components(summary), standing(summary, runs)]


def _totals(summary: PoolSummary) -> Chart:
    sizes = {
        "this pool": summary.bytes.total,
        "plain fp16 labels, nothing else": summary.bytes.logical_fp16,
        "original layout, one pickle per batch": summary.bytes.pickle_layout,
    }
    rows, images = max(summary.rows, 1), max(summary.images, 1)
    items = [
        Bar(
            label=name,
            value=size,
            text=human_bytes(size),
            colour=number,
            more=(f"{size / rows:,.1f}", human_bytes(size / images)),
        )
        for number, (name, size) in enumerate(sizes.items())
    ]
    ratio = summary.ratio_to_pickle_layout
    than = "more than" if ratio < 1 else f"{ratio:.2f} times less than"
    total = summary.bytes.total
    each = f"{total / rows:,.1f} bytes per row, {human_bytes(total / images)} per image"
    says = f"{each}; {than} the original layout."
    return bars("Bytes in all", says, items, headers=("in all", "bytes per row", "per image"))


def _components(summary: PoolSummary) -> Chart:
    before, rows = original_layout(summary), max(summary.rows, 1)
    items = []
    for name in COMPONENTS:
        label = COMPONENT_NAMES.get(name, name)
        for colour, (whose, size) in enumerate(
            (("this pool", summary.bytes.components[name]), ("original", before[name]))
        ):
            if size or before[name] or summary.bytes.components[name]:
                text, more = human_bytes(size), (f"{size / rows:.2f}",)
                items.append(Bar(label=f"{label}: {whose}", value=size, text=text, colour=colour, more=more))
    says = "Each part of the pool beside the original layout's; bars grow with the logarithm of the bytes."
    return bars("Bytes by component", says, items, headers=("bytes", "per row"), logarithmic=True)


def standing(summary: PoolSummary, runs: Sequence[Run] = ()) -> Chart:
    """Return accuracy over label bytes of published pools, and this pool's place among them."""
    dataset, rows = published_for(summary.classes)
    series = published_series(rows)
    own = [run for run in runs if run.pool in (None, summary.content_digest)]
    reached = {run.name: run.top1 for run in own if run.top1 is not None}
    if reached:
        points = [(float(summary.bytes.total), 100 * top1) for top1 in reached.values()]
        series.append(Series(name="students of this pool", points=points, labels=list(reached), joined=False))
    per_image = human_bytes(summary.bytes.total / max(summary.images, 1))
    says = (
        f"Label bytes and top-1 of ResNet-18 on {dataset} as published; the line is this pool, "
        f"{summary.images:,} images of {summary.classes:,} classes, {per_image} per image."
    )
    return plot(
        "Among published pools",
        says,
        series,
        x="label bytes",
        y="top-1, %",
        logarithmic_x=True,
        x_form=human_bytes,
        line=(float(summary.bytes.total), "this pool"),
    )


def published_series(rows: Sequence[Published]) -> list[Series]:
    """Return a series for each published system."""
    return [
        Series(
            name=f"{system} (published)",
            points=[(row.label_bytes, row.top1) for row in rows if row.system == system],
            labels=[
                f"{row.name}, {human_bytes(row.bytes_per_image)} per image"
                for row in rows
                if row.system == system
            ],
        )
        for system in dict.fromkeys(row.system for row in rows)
    ]
