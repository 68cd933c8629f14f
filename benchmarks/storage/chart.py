"""Label storage of ImageNet-1K by images per class: ours against published systems, on a log scale."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.storage.spec import IMAGENET_1K, PUBLISHED_SYSTEMS

OURS = (("f16", 40, "ours, f16 40x"), ("klt", 10, "ours, klt 10x"), ("klt", 40, "ours, klt 40x"))
OURS_COLOURS = ("#9ecae1", "#4292c6", "#08519c")
PUBLISHED_COLOURS = ("#636363", "#969696", "#fdae6b", "#e6550d")


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the chart. rows: of the storage table."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter

    measured = {row["ipc"] for row in rows if row["dataset"] == IMAGENET_1K.name}
    ipcs = sorted(measured & next(iter(PUBLISHED_SYSTEMS.values())).keys())
    full = {row.ipc: row.labels for row in IMAGENET_1K.rows}
    series: list[tuple[str, str, list[float]]] = [
        ("SRe2L, CDA, RDED (no pruning)", PUBLISHED_COLOURS[0], [full[ipc] for ipc in ipcs])
    ]
    for (name, values), colour in zip(PUBLISHED_SYSTEMS.items(), PUBLISHED_COLOURS[1:], strict=True):
        series.append((name, colour, [values[ipc][0] for ipc in ipcs]))
    for (layout, ratio, name), colour in zip(OURS, OURS_COLOURS, strict=True):
        series.append((name, colour, [_measured(rows, layout, ipc, ratio) for ipc in ipcs]))
    figure, axes = plt.subplots(figsize=(9, 4.5), layout="constrained")
    width = 0.85 / len(series)
    for number, (name, colour, sizes) in enumerate(series):
        places = [place + (number - (len(series) - 1) / 2) * width for place in range(len(ipcs))]
        axes.bar(places, sizes, width, label=name, color=colour)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks(range(len(ipcs)), [f"IPC {ipc}" for ipc in ipcs])
    axes.set_ylabel("label storage, GiB (log scale)")
    axes.set_title("ImageNet-1K soft labels: published systems (grey, orange) and this project (blue)")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, ncols=2, loc="upper left")
    axes.set_ylim(top=axes.get_ylim()[1] * 6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _measured(rows: Sequence[dict[str, Any]], layout: str, ipc: int, ratio: int) -> float:
    (value,) = [
        row["measured"]
        for row in rows
        if (row["dataset"], row["layout"], row["ipc"], row["ratio"]) == (IMAGENET_1K.name, layout, ipc, ratio)
    ]
    return float(value)
