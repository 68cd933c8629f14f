"""Charts on whole pools, for reports and comparisons: bytes, fidelity, accuracy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from lpld_labels.codecs.fidelity import Fidelity
from lpld_labels.format.files import Counts
from lpld_labels.format.schema import Component
from lpld_labels.inspect.charts import Bar, Chart, Series, bars, plot
from lpld_labels.inspect.runs import Run
from lpld_labels.inspect.summary import COMPONENT_NAMES
from lpld_labels.inspect.text import human_bytes, percent


def size_charts(pools: Sequence[tuple[str, Mapping[Component, int], Counts]], says: str) -> list[Chart]:
    """Return bytes in all and by component. pools: name, bytes of the components, rows and images."""
    totals, parts = [], []
    for colour, (name, components, counts) in enumerate(pools):
        size = sum(components.values())
        more = (f"{size / max(counts.rows, 1):,.1f}", human_bytes(size / max(counts.images, 1)))
        totals.append(Bar(label=name, value=size, text=human_bytes(size), colour=colour, more=more))
    for component, component_name in COMPONENT_NAMES.items():
        if not any(components[component] for _, components, _ in pools):
            continue
        for colour, (name, components, counts) in enumerate(pools):
            size, label = components[component], f"{component_name}: {name}"
            each = (f"{size / max(counts.rows, 1):.2f}",)
            parts.append(Bar(label=label, value=size, text=human_bytes(size), colour=colour, more=each))
    logarithmic = "Bars grow with the logarithm of the bytes."
    return [
        bars("Bytes in all", says, totals, headers=("in all", "bytes per row", "per image")),
        bars("Bytes by component", logarithmic, parts, headers=("bytes", "per row"), logarithmic=True),
    ]


def fidelity_chart(measured: Sequence[tuple[str, str, Fidelity]]) -> Chart:
    """Return what codecs kept. measured: name, the pool that it was measured by, and what was found."""
    items = []
    for colour, (name, against, fidelity) in enumerate(measured):
        more = (against, f"{fidelity.rows:,}")
        values = {f"T = {t:g}": (max(kept, 0.0), f"{100 * kept:.3f} %") for t, kept in fidelity.kept.items()}
        values["same strongest class"] = (fidelity.top1, percent(fidelity.top1))
        for what, (value, text) in values.items():
            items.append(Bar(label=f"{name}: {what}", value=value, text=text, colour=colour, more=more))
    says = (
        "1 - KL(original, decoded) / KL(original, uniform) at temperature T, 100 % is everything; and rows "
        "whose strongest class is the same."
    )
    return bars("Information kept", says, items, headers=("kept", "against", "rows"))


def accuracy_chart(
    title: str,
    says: str,
    students: Sequence[tuple[str, float, Sequence[Run]]],
    *,
    others: Sequence[Series] = (),
    line: tuple[float, str] | None = None,
) -> Chart:
    """Return accuracy over label bytes. students: (name, bytes of the pool, runs that learned from it).

    others: published results. line: a vertical line with its name.
    """
    series = []
    for name, size, runs in students:
        reached = [run for run in runs if run.top1 is not None]
        if reached:
            points = [(float(size), 100 * (run.top1 or 0)) for run in reached]
            labels = [f"{name}, {run.name}" for run in reached]
            series.append(Series(name=name, points=points, labels=labels, joined=False))
    return plot(
        title,
        says,
        [*series, *others],
        x="label bytes",
        y="top-1, %",
        logarithmic_x=True,
        x_form=human_bytes,
        line=line,
    )


def published(classes: int) -> tuple[str, list[Series]]:
    """Return the data set of so many classes and what papers publish of it, by system; or "" and nothing."""
    known = json.loads((files(__package__) / "published.json").read_bytes())
    found = []
    for system in known["systems"]:
        if system["classes"] == classes:
            sizes = [pool["size"] * known["unit_bytes"][str(classes)] for pool in system["pools"]]
            points, labels = [], []
            for pool, size in zip(system["pools"], sizes, strict=True):
                each = human_bytes(size / (pool["ipc"] * classes))
                labels.append(f"{system['name']}, {pool['ipc']} images per class, {each} per image")
                points.append((size, pool["top1"]))
            found.append(Series(name=f"{system['name']} (published)", points=points, labels=labels))
    return known["datasets"].get(str(classes), ""), found
