"""What the demo ends with: accuracy against label bytes, as a table, as JSON and as a plot."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .console import human_bytes, stdout_console

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the table; everything but name and accuracy is None where no labels are stored."""

    name: str
    top1: float
    images: str | None = None
    ratio: int | None = None
    batches: int | None = None
    label_bytes: int | None = None
    pool_bytes: int | None = None


def pool_line(images: str, ratio: int, pool: Path, run: Path) -> Line:
    """Weigh a pool and look up what its student reached."""
    from lpld_labels.inspection.summary import summarise

    summary = summarise(pool)
    last = json.loads((run / "log.jsonl").read_text().splitlines()[-1])
    return Line(
        name=f"{images}, {ratio}x",
        images=images,
        ratio=ratio,
        batches=summary.batches,
        label_bytes=summary.bytes.components["labels"],
        pool_bytes=summary.bytes.total,
        top1=last["top1"],
    )


def show_report(lines: list[Line]) -> None:
    """Print the table."""
    from rich.table import Table

    table = Table(title="Label bytes against accuracy (digits, 10 images per class)", title_justify="left")
    for column in ("student of", "label\nbatches", "label\nbytes", "pool on\ndisk", "top-1"):
        table.add_column(column, justify="left" if column == "student of" else "right")
    for line in lines:
        table.add_row(
            line.name,
            "" if line.batches is None else str(line.batches),
            "" if line.label_bytes is None else human_bytes(line.label_bytes),
            "" if line.pool_bytes is None else human_bytes(line.pool_bytes),
            f"{line.top1:.1%}",
        )
    stdout_console().print(table)


def save_report(out: Path, lines: list[Line], seconds: float) -> None:
    """Write table.json and accuracy.png."""
    document = {"seconds": round(seconds, 1), "lines": [asdict(line) for line in lines]}
    (out / "table.json").write_text(json.dumps(document, indent=2) + "\n")
    draw_report(lines).savefig(out / "accuracy.png", dpi=120)


def draw_report(lines: list[Line]) -> Figure:
    """Return the plot of accuracy against bytes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    stored = [line for line in lines if line.pool_bytes is not None]
    for number, images in enumerate(dict.fromkeys(line.images for line in stored)):
        pools = [line for line in stored if line.images == images]
        points = [(float(line.pool_bytes or 0), 100 * line.top1) for line in pools]
        axes.plot(*zip(*points, strict=True), "o-", color=f"C{number}", label=images)
    others = [line for line in lines if line.pool_bytes is None]
    for line, style in zip(others, ("--", ":"), strict=True):
        axes.axhline(100 * line.top1, linestyle=style, color="0.4", label=line.name)
    axes.set(xscale="log", xlabel="pool on disk, and its prune ratio", ylabel="top-1 accuracy, %")
    axes.minorticks_off()
    axes.set_xticks(*_size_ticks(stored))
    axes.set_title("Label bytes (less is better) against accuracy: digits, 10 images per class", fontsize=11)
    # Below the axes: wherever the curves go, nothing is overprinted.
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _size_ticks(stored: list[Line]) -> tuple[list[float], list[str]]:
    """Return where pools of each ratio lie, and what to write there: they weigh nearly the same."""
    places = []
    for ratio in sorted({line.ratio or 1 for line in stored}):
        sizes = [line.pool_bytes or 0 for line in stored if line.ratio == ratio]
        places.append((sum(sizes) / len(sizes), ratio))
    return [size for size, _ in places], [f"{human_bytes(size)}\n{ratio}x" for size, ratio in places]
