"""Accuracy against bytes: one line per method and pool, one marker per codec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.accuracy.report import variant_name

COLOURS = {"lpld": "#08519c", "sre2l": "#636363", "rded": "#31a354", "cda": "#e6550d"}
CODEC_MARKERS = {"klt": "*", "topk:3": "v", "topk:5": "^"}


def draw(results: dict[str, Any], path: Path) -> None:
    """Draw the rows of a report."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    lines: dict[str, list[dict[str, Any]]] = {}
    for row in results["rows"]:
        plain = row["by"] == "random" and not (row["drop_easy"] or row["drop_hard"] or row["ipc"])
        if plain and row["loss"] == "kl" and row["student"] is None and row["method"] in COLOURS:
            lines.setdefault(variant_name(row), []).append(row)
    for name, rows in sorted(lines.items()):
        rows.sort(key=lambda row: int(row["bytes"]))
        codec = rows[0]["codec"]
        axes.errorbar(
            [row["bytes"] / 1e3 for row in rows],
            [100 * row["mean"] for row in rows],
            yerr=[100 * (row["std"] or 0) for row in rows],
            label=name,
            color=COLOURS[rows[0]["method"]],
            linestyle="none" if codec != "f16" else "-" if rows[0]["pool"] == "batches" else "--",
            marker=CODEC_MARKERS.get(codec, "o"),
            markersize=9 if codec != "f16" else 5,
            capsize=3,
        )
    scale = results["scale"]
    title = f"{scale['dataset']}, IPC {scale['ipc']}, {scale['size']} px: accuracy against label bytes"
    finished_axes(axes, title=title, unit="kB")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def finished_axes(axes: Any, *, title: str, unit: str) -> None:
    """Give axes of accuracy against bytes their scale, names, grid and legend."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(f"label pool on disk, {unit} (log scale)")
    axes.set_ylabel("top-1 of the student, %")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8)
