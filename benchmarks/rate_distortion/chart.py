"""The rate-distortion chart: what is lost against bytes per row, one panel per temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.rate_distortion.measure import RateDistortion
from lpld_labels.codecs.fidelity import TEMPERATURES

STYLES: dict[str, dict[str, Any]] = {
    "klt": {"color": "#c1272d", "marker": "o", "linewidth": 2.2, "zorder": 4, "label": "klt (ours)"},
    "int-n": {"color": "#0b6e4f", "marker": "s", "linewidth": 1.3, "label": "int4, int6, int8"},
    "top-k, 16 bits": {"color": "#1f4e8c", "marker": "^", "linewidth": 1.3, "label": "top-k, fp16 values"},
    "top-k, 8 bits": {
        "color": "#7aa6d8",
        "marker": "v",
        "linewidth": 1.3,
        "linestyle": "--",
        "label": "top-k, 8-bit values",
    },
}

PUBLISHED_ENTRY = 4
"""Bytes of a kept entry in published top-k labels: a half and a 16-bit class index."""


def draw_chart(path: Path, curve: RateDistortion) -> None:
    """Draw the families of one pool."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullFormatter

    percent = FuncFormatter(lambda value, _: f"{value:g} %")
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    figure, panels = plt.subplots(1, len(TEMPERATURES), figsize=(12.5, 4.6), sharey=True)
    f16 = next(point for point in curve.points if point.family == "f16")
    for panel, temperature in zip(panels, TEMPERATURES, strict=True):
        for family, style in STYLES.items():
            points = curve.envelope(temperature) if family == "klt" else curve.family(family)
            lost = [100 * (1 - point.fidelity.kept[temperature]) for point in points]
            panel.plot([point.payload for point in points], lost, markersize=5, **style)
        top_k = curve.family("top-k, 16 bits")
        panel.plot(
            [PUBLISHED_ENTRY * int(point.name.split(":")[1]) for point in top_k],
            [100 * (1 - point.fidelity.kept[temperature]) for point in top_k],
            color="#999999",
            marker="x",
            markersize=5,
            linewidth=1,
            linestyle=":",
            label="top-k as published (fp16 + int16)",
        )
        panel.axvline(f16.payload, color="#555555", linewidth=1, linestyle=":")
        panel.text(f16.payload * 0.94, 0.0015, "f16, lossless", rotation=90, ha="right", fontsize=8)
        panel.set(xscale="log", yscale="log", ylim=(0.001, 140), xlim=(6, 2600))
        panel.set_xticks([10, 20, 50, 100, 200, 500, 1000, 2000])
        panel.xaxis.set_major_formatter(plain)
        panel.xaxis.set_minor_formatter(NullFormatter())
        panel.yaxis.set_major_formatter(percent)
        panel.set_title(f"temperature {temperature:g}", fontsize=11)
        panel.set_xlabel("label payload, bytes per row")
        panel.grid(visible=True, which="major", color="#dddddd", linewidth=0.8)
        panel.set_axisbelow(True)
    panels[0].set_ylabel("information lost\nKL(p‖q) / KL(p‖uniform)")
    for point in curve.family("top-k, 16 bits"):
        place = (point.payload, 100 * (1 - point.fidelity.kept[TEMPERATURES[-1]]))
        text = f"k={point.name.split(':')[1]}"
        panels[-1].annotate(
            text, place, textcoords="offset points", xytext=(0, -13), ha="center", fontsize=7, color="#1f4e8c"
        )
    panels[0].legend(loc="lower left", fontsize=8, framealpha=0.95)
    figure.suptitle(
        f"{curve.classes:,} classes, fp16 = {2 * curve.classes:,} bytes per row; "
        f"fitted on {curve.rows_fitted:,} rows, measured on {curve.rows_measured:,} others",
        fontsize=11,
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
