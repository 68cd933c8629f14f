"""``lpld-labels inspect``: what a pool is and what it weighs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .common_options import json_option, pool_argument
from .console import human_bytes, print_json, stdout_console, times_smaller
from .tables import facts_table

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.inspect.summary import PoolSummary

COMPONENT_NAMES = {
    "crop": "1  crop coordinates",
    "flip": "2  flip",
    "mix_index": "3  mix index",
    "mix_strength": "4  mix strength",
    "mix_box": "5  mix box, cut-out, patches",
    "labels": "6  labels",
    "codec": "   codec tables",
    "keys": "   keys (epoch, batch, slot, image)",
    "packed": "   images",
    "container": "   container (footers, indexes, image table)",
}


@click.command("inspect")
@pool_argument
@json_option("tables")
def command(pool: str, as_json: bool) -> None:
    """Say what the pool is and what it weighs.

    POOL is a directory or a URI. Reads its manifest and nothing else.

    \b
    Examples:
      lpld-labels inspect pools/in1k_ipc10
      lpld-labels inspect s3://bucket/pools/in1k_ipc10 --json | jq .bytes.components
    """
    from lpld_labels.inspect.summary import summarise

    summary = summarise(pool)
    if as_json:
        print_json(summary.as_json())
        return
    console = stdout_console()
    console.print(_what(summary))
    console.print(_weight(summary))


def _what(summary: PoolSummary) -> Table:
    from lpld_labels.inspect.settings import augmentation_of, codec_of, teachers_of

    views = summary.views_per_image
    rows = {
        "content": summary.content_digest,
        "labels": f"{summary.label_kind}, {summary.classes} classes, codec {codec_of(summary)}",
        "images": f"{summary.images} ({summary.images_covered} seen), "
        f"{summary.classes_covered} of {summary.classes} classes covered",
        "views per image": f"min {views.minimum}, median {views.median:g}, max {views.maximum}",
        "batches": f"{summary.batches} of {summary.batch_size} rows"
        + (f" ({summary.incomplete_batches} incomplete)" if summary.incomplete_batches else "")
        + f" over {summary.epochs} epochs, {summary.rows} rows",
        "teacher": teachers_of(summary),
        "augmentation": augmentation_of(summary.augmentation),
        "seed": "unknown" if summary.seed is None else str(summary.seed),
        "views": "stored" if summary.views == "stored" else "drawn when read (not stored)",
        "lineage": _lineage(summary),
    }
    return facts_table(f"Label pool {summary.location}", rows.items())


def _lineage(summary: PoolSummary) -> str:
    steps = []
    for step in summary.lineage:
        details = ", ".join(f"{name} {value}" for name, value in step.parameters.items() if value is not None)
        parent = f" from {step.parent_digest[:12]}" if step.parent_digest else ""
        steps.append(f"{step.operation}{parent}" + (f" ({details})" if details else ""))
    return "\n".join(steps) or "none recorded"


def _weight(summary: PoolSummary) -> Table:
    from rich.table import Table

    table = Table(title="Bytes on disk", title_justify="left", show_footer=True)
    total = summary.bytes.total
    table.add_column("component", footer="total")
    table.add_column("size", justify="right", footer=human_bytes(total))
    table.add_column("bytes/row", justify="right", footer=f"{summary.bytes_per_row:.1f}")
    table.add_column("share", justify="right", footer="100 %")
    for name, size in summary.bytes.components.items():
        per_row = f"{size / summary.rows:.2f}" if summary.rows else "-"
        table.add_row(COMPONENT_NAMES[name], human_bytes(size), per_row, f"{100 * size / total:.2f} %")
    table.caption_justify = "left"
    table.caption = (
        f"{times_smaller(summary.ratio)} than plain fp16 logits ({human_bytes(summary.bytes.logical_fp16)}), "
        f"{times_smaller(summary.ratio_to_pickle_layout)} than one pickle per batch "
        f"({human_bytes(summary.bytes.pickle_layout)})"
    )
    return table
