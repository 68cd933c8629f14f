"""The demo as a page: the table, bytes against accuracy, the images, the students."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lpld_labels.inspect.pages.charts import Chart, Series, plot
from lpld_labels.inspect.pages.markup import Markup, table, tag
from lpld_labels.inspect.pages.numbers import human_bytes
from lpld_labels.inspect.pages.page import Section, charts_in_grid, page, save_page
from lpld_labels.inspect.report.runs import read_runs, run_charts

from .demo_report import COLUMNS, Line, cells, findings, what_pruning_costs

if TYPE_CHECKING:
    from .demo import Demo

CURVES = {
    "real digits": ("real_1x",),
    "sre2l images": ("sre2l_1x", "sre2l_10x", "sre2l_40x"),
    "lpld images": ("lpld_1x", "lpld_10x", "lpld_40x"),
    "lpld images, klt": ("lpld_klt",),
}


def save_demo_page(path: Path, demo: Demo, lines: Sequence[Line]) -> None:
    """Write the page."""
    runs = [demo.student(*line.key.split("_")) for line in lines if line.pool_bytes and line.top1 is not None]
    says = [tag("li", finding.text) for finding in findings({line.key: line.top1 for line in lines})]
    sections = [
        Section(
            key="table",
            heading="Label bytes against accuracy",
            parts=[
                table([column.replace("\n", " ") for column in COLUMNS], [cells(line) for line in lines]),
                tag("ul", *says),
                tag("p", what_pruning_costs(lines)),
                charts_in_grid([_accuracy(lines)]),
            ],
        ),
        Section(key="images", heading="The images", parts=_images(demo)),
        Section(key="students", heading="The students", parts=[charts_in_grid(_learning(runs))]),
        Section(key="more", heading="Look further", parts=[_commands(demo)]),
    ]
    lead = [
        tag(
            "p",
            "A teacher of MNIST labels ten images of each digit: real ones, and two kinds made from what it "
            "remembers. Students see nothing but those images and labels, and are judged by 1,000 others.",
        )
    ]
    save_page(path, page("What lpld-labels does, on 5,000 digits", lead, sections))


def _accuracy(lines: Sequence[Line]) -> Chart:
    series = []
    for name, keys in CURVES.items():
        chosen = [line for line in lines if line.key in keys and line.top1 is not None]
        points = [(float(line.pool_bytes or 0), 100 * (line.top1 or 0)) for line in chosen]
        series.append(Series(name=name, points=points, labels=[line.name for line in chosen]))
    return plot(
        "Accuracy against bytes",
        "Top-1 of students over the bytes of the pool they learned from; prunings are joined.",
        series,
        x="label bytes",
        y="top-1, %",
        logarithmic_x=True,
        x_form=human_bytes,
    )


def _learning(runs: Sequence[Path]) -> list[Chart]:
    """Return how loss and accuracy went; the learning rate is the same for all."""
    return [chart for chart in run_charts(read_runs(runs)) if chart.title != "Learning rate"]


def _images(demo: Demo) -> list[Markup]:
    parts = []
    for method, says in (
        ("lpld", "lpld: a class's images are made together, towards the statistics of the class"),
        ("sre2l", "sre2l: images of all classes are made together, towards those of all data"),
    ):
        sheet = (demo.out / method / "contact_sheet.png").read_bytes()
        uri = f"data:image/png;base64,{base64.b64encode(sheet).decode()}"
        picture = tag("img", src=uri, alt=f"images of {method}", class_="whole-picture")
        parts.append(tag("figure", tag("figcaption", says), picture))
    return [tag("div", *parts, class_="grid-of-charts")]


def _commands(demo: Demo) -> Markup:
    whole, small = demo.pool("lpld", "1x"), demo.pool("lpld", "40x")
    lines = (
        f"lpld-labels inspect {small}",
        f"lpld-labels report {whole} --images {demo.images('lpld')} --out report.html",
        f"lpld-labels compare {demo.out / 'pools'}/* --out compare.html --runs {demo.out / 'students'}/*",
    )
    return tag("pre", "\n".join(lines))
