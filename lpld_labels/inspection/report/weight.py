"""What a pool weighs: by component, beside the original layout, and among published pools."""

from __future__ import annotations

from collections.abc import Sequence

from lpld_labels.format.schema import COMPONENTS, Component
from lpld_labels.inspection.pages.charts import Bar, Chart, Series, bars, plot
from lpld_labels.inspection.pages.numbers import human_bytes
from lpld_labels.inspection.report.published import published_for
from lpld_labels.inspection.report.runs import Run
from lpld_labels.inspection.summary import PICKLE_BATCH_OVERHEAD, PICKLE_ROW_BYTES, PoolSummary

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
            text=f"{human_bytes(size)}; {size / rows:,.1f} B/row, {human_bytes(size / images)}/image",
            colour=number,
        )
        for number, (name, size) in enumerate(sizes.items())
    ]
    says = f"{summary.ratio_to_pickle_layout:.2f} times less than the original layout of the same rows."
    if summary.ratio_to_pickle_layout < 1:
        says = "More than the original layout takes for the same rows."
    return bars("Bytes in all", says, items, value_name="bytes")


def _components(summary: PoolSummary) -> Chart:
    before, rows = original_layout(summary), max(summary.rows, 1)
    items = []
    for name in COMPONENTS:
        label = COMPONENT_NAMES.get(name, name)
        for colour, (whose, size) in enumerate(
            (("this pool", summary.bytes.components[name]), ("original", before[name]))
        ):
            if size or before[name] or summary.bytes.components[name]:
                text = f"{human_bytes(size)}; {size / rows:.2f} B/row"
                items.append(Bar(label=f"{label}: {whose}", value=size, text=text, colour=2 * colour))
    says = "Each part of the pool beside the original layout's; bars grow with the logarithm of the bytes."
    return bars("Bytes by component", says, items, value_name="bytes", logarithmic=True)


def standing(summary: PoolSummary, runs: Sequence[Run] = ()) -> Chart:
    """Return accuracy over label bytes per image of published pools, and this pool's place among them."""
    dataset, rows = published_for(summary.classes)
    systems = dict.fromkeys(row.system for row in rows)
    series = [
        Series(
            name=f"{system} (published)",
            points=[(row.bytes_per_image, row.top1) for row in rows if row.system == system],
            labels=[row.name for row in rows if row.system == system],
        )
        for system in systems
    ]
    per_image = summary.bytes.total / max(summary.images, 1)
    reached = [(per_image, 100 * run.top1) for run in runs if run.top1 is not None]
    if reached:
        names = [run.name for run in runs if run.top1 is not None]
        series.append(Series(name="students of this pool", points=reached, labels=names, joined=False))
    says = f"Label bytes per image and top-1 of ResNet-18 on {dataset} as published; the line is this pool."
    if summary.classes != rows[0].classes:
        says += f" It has {summary.classes:,} classes, {dataset} {rows[0].classes:,}: a row weighs otherwise."
    return plot(
        "Among published pools",
        says,
        series,
        x="label bytes per image",
        y="top-1, %",
        logarithmic_x=True,
        x_form=human_bytes,
        line=(per_image, "this pool") if per_image else None,
    )
