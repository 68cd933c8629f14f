"""A comparison as a page."""

from __future__ import annotations

from collections.abc import Sequence

from lpld_labels.inspect.comparison.compare import Comparison, PoolColumn
from lpld_labels.inspect.comparison.family import family
from lpld_labels.inspect.pages.charts import Bar, Chart, Series, bars, plot
from lpld_labels.inspect.pages.markup import Markup, folded, shortened, table, tag
from lpld_labels.inspect.pages.numbers import human_bytes, percent
from lpld_labels.inspect.pages.page import Section, charts_in_grid, page
from lpld_labels.inspect.report.published import published_for
from lpld_labels.inspect.report.runs import run_charts
from lpld_labels.inspect.report.weight import COMPONENT_NAMES, published_series


def comparison_page(comparison: Comparison, command: str = "") -> bytes:
    """Return the comparison as an HTML file. command: how it was asked for."""
    pools = comparison.pools
    sections = [
        Section(key="relations", heading="Which came from which", parts=_relations(comparison)),
        Section(key="settings", heading="What differs", parts=_settings(comparison)),
        Section(key="weight", heading="What they weigh", parts=[charts_in_grid(_weights(pools))]),
        Section(key="kept", heading="What codecs kept", parts=_kept(pools)),
        Section(key="accuracy", heading="Accuracy against bytes", parts=_accuracy(comparison)),
    ]
    lead = [tag("p", ", ".join(f"{shortened(p.name)} ({human_bytes(p.summary.bytes.total)})" for p in pools))]
    lead += [tag("pre", command)] if command else []
    return page(f"{len(pools)} label pools side by side", lead, sections)


def _relations(comparison: Comparison) -> list[Markup]:
    names = [pool.name for pool in comparison.pools]
    shared = {(r.first, r.second): r for r in comparison.relations}
    rows = []
    for one in comparison.pools:
        cells = [shortened(one.name)]
        for other in comparison.pools:
            relation = shared.get((one.name, other.name)) or shared.get((other.name, one.name))
            if relation is None:
                cells.append(f"{one.summary.batches:,}")
            else:
                cells.append(f"{relation.shared:,} ({relation.identical:,} identical)")
        rows.append(cells)
    says = [tag("li", relation.text) for relation in comparison.relations]
    matrix = table(["", *(shortened(name) for name in names)], rows, caption="Label batches in common")
    return [tag("ul", *says, id="relations-in-words"), family(names, comparison.relations), matrix]


def _settings(comparison: Comparison) -> list[Markup]:
    pools = comparison.pools
    headers = ["", *(shortened(pool.name) for pool in pools)]

    def row(name: str) -> list[str]:
        return [name, *(shortened(pool.settings[name], 200) for pool in pools)]

    differing = list(comparison.differing)
    same = [name for name in pools[0].settings if name not in comparison.differing]
    return [
        table(headers, [row(name) for name in differing], caption="Settings that differ"),
        folded("Settings that are the same", table(headers, [row(name) for name in same])),
    ]


def _weights(pools: Sequence[PoolColumn]) -> list[Chart]:
    totals = [
        Bar(
            label=pool.name,
            value=pool.summary.bytes.total,
            text=human_bytes(pool.summary.bytes.total),
            colour=number,
            more=(
                f"{pool.summary.bytes_per_row:,.1f}",
                human_bytes(pool.summary.bytes.total / max(pool.summary.images, 1)),
            ),
        )
        for number, pool in enumerate(pools)
    ]
    parts = []
    for name in pools[0].summary.bytes.components:
        for number, pool in enumerate(pools):
            size = pool.summary.bytes.components[name]
            if any(one.summary.bytes.components[name] for one in pools):
                label = f"{COMPONENT_NAMES.get(name, name)}: {pool.name}"
                parts.append(Bar(label=label, value=size, text=human_bytes(size), colour=number))
    return [
        bars(
            "Bytes in all",
            "All files of each pool.",
            totals,
            headers=("in all", "bytes per row", "per image"),
        ),
        bars(
            "Bytes by component",
            "Bars grow with the logarithm of the bytes.",
            parts,
            headers=("bytes",),
            logarithmic=True,
        ),
    ]


def _kept(pools: Sequence[PoolColumn]) -> list[Markup]:
    measured = [(pool, pool.kept) for pool in pools if pool.kept is not None]
    if not measured:
        return [
            tag("p", "Every pool stores its labels without loss, or none shares views with its original.")
        ]
    items = []
    for number, (pool, kept) in enumerate(measured):
        for temperature, share in kept.fidelity.kept.items():
            name = f"{pool.name} at T = {temperature:g}"
            text = f"{100 * share:.2f} %"
            more = (kept.against, f"{kept.fidelity.rows:,}")
            items.append(Bar(label=name, value=max(share, 0), text=text, colour=number, more=more))
        top1 = kept.fidelity.top1
        more = (kept.against, f"{kept.fidelity.rows:,}")
        label = f"{pool.name}: same strongest class"
        items.append(Bar(label=label, value=top1, text=percent(top1), colour=number, more=more))
    says = "Information kept and top-1 agreement, on a sample of the batches shared with the original."
    chart = bars("Fidelity", says, items, headers=("kept", "against", "rows"))
    return [charts_in_grid([chart])]


def _accuracy(comparison: Comparison) -> list[Markup]:
    pools = comparison.pools
    series = []
    for pool in pools:
        reached = [(float(pool.summary.bytes.total), 100 * r.top1) for r in pool.runs if r.top1 is not None]
        labels = [f"{pool.name}, {run.name}" for run in pool.runs if run.top1 is not None]
        if reached:
            series.append(Series(name=pool.name, points=reached, labels=labels, joined=False))
    _, rows = published_for(pools[0].summary.classes)
    same = all(pool.summary.classes == rows[0].classes for pool in pools)
    if same:
        series += published_series(rows)
    parts: list[Markup] = []
    if series:
        chart = plot(
            "Accuracy against bytes",
            "Top-1 of students over the bytes of the pool they learned from"
            + (", beside published ones." if same else "."),
            series,
            x="label bytes",
            y="top-1, %",
            logarithmic_x=True,
            x_form=human_bytes,
        )
        parts.append(charts_in_grid([chart]))
    if not any(pool.runs for pool in pools):
        parts.append(tag("p", "No student of these pools was given (--runs)."))
    if comparison.strangers:
        names = ", ".join(shortened(run.name) for run in comparison.strangers)
        parts.append(tag("p", f"Runs that learned from none of these pools, or do not say: {names}."))
    every = [run for pool in pools for run in pool.runs] + list(comparison.strangers)
    return [*parts, charts_in_grid(run_charts(every))] if every else parts
