"""The report as a page: from an open pool to one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lpld_labels.exec.job import Progress
from lpld_labels.inspect.pages.charts import Bar, Chart, bars
from lpld_labels.inspect.pages.flow import flow
from lpld_labels.inspect.pages.markup import Markup, folded, shortened, table, tag
from lpld_labels.inspect.pages.numbers import human_bytes, percent
from lpld_labels.inspect.pages.page import Section, charts_in_grid, page
from lpld_labels.inspect.recipe import recipe
from lpld_labels.inspect.report.cards import Sheet
from lpld_labels.inspect.report.facts import PoolFacts, gather_facts
from lpld_labels.inspect.report.lineage import lineage_steps
from lpld_labels.inspect.report.odd import oddities
from lpld_labels.inspect.report.runs import Run, run_charts, run_oddities
from lpld_labels.inspect.report.sample import Sample, take_sample
from lpld_labels.inspect.report.spread import spread_charts
from lpld_labels.inspect.report.views import ShownView, shown_views
from lpld_labels.inspect.report.weight import weight_charts
from lpld_labels.inspect.settings import settings_of
from lpld_labels.pool.packed_images import packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.image_source import find_images

_FILES_SHOWN = 40


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything the page shows. command: how it was asked for, empty where no command did.

    recipe: the commands that make the pool again.
    """

    facts: PoolFacts
    sample: Sample
    shown: Sequence[ShownView]
    files: Sequence[tuple[str, str, str]]
    against: str | None
    runs: Sequence[Run]
    odd: Sequence[str]
    recipe: Sequence[str]
    command: str


def make_report(
    pool: PoolReader,
    *,
    images: Path | None = None,
    against: PoolReader | None = None,
    runs: Sequence[Run] = (),
    names: Sequence[str] | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Look at a pool. names: of the classes.

    images: its image folder, for the pictures; a pool that carries its images needs none.

    against: the pool whose labels this one's came from. Reads footers, which image each view shows, and a
    sample of label batches: a few seconds, whatever the pool weighs.
    """
    facts = gather_facts(pool, names=names)
    source = packed_images(pool) if images is None else find_images(pool, images)
    sample = take_sample(pool, against=against, progress=progress)
    return Report(
        facts=facts,
        sample=sample,
        shown=shown_views(pool, sample, source),
        files=[
            (shortened(e.path), human_bytes(e.bytes), e.digest) for e in pool.manifest.files[:_FILES_SHOWN]
        ],
        against=None if against is None else str(against.location),
        runs=runs,
        odd=[*oddities(facts, sample), *run_oddities(runs, facts.summary.content_digest)],
        recipe=recipe(pool.manifest),
        command=command,
    )


def report_page(report: Report) -> bytes:
    """Return the report as an HTML file."""
    summary = report.facts.summary
    sections = [
        Section(key="what", heading="What it is", parts=_what(report)),
        Section(
            key="weight",
            heading="What it weighs",
            parts=[charts_in_grid(weight_charts(summary, report.runs))],
        ),
        Section(key="views", heading="What is in it", parts=_views(report)),
        Section(
            key="spread",
            heading="How it is spread",
            parts=[charts_in_grid(spread_charts(report.facts, report.sample))],
        ),
    ]
    if report.against is not None:
        sections.append(Section(key="kept", heading="What the codec kept", parts=_kept(report)))
    if report.runs:
        sections.append(
            Section(key="runs", heading="Students", parts=[charts_in_grid(run_charts(report.runs))])
        )
    lead = [
        tag(
            "p",
            f"{summary.rows:,} labels of {summary.images:,} images and {summary.classes:,} classes, "
            f"codec {summary.codec}, {human_bytes(summary.bytes.total)}.",
        ),
        odd_block(report.odd),
    ]
    return page(f"Label pool {shortened(summary.location)}", lead, sections)


def odd_block(odd: Sequence[str]) -> Markup:
    """Return what is odd, or that nothing is."""
    if not odd:
        return tag("p", "Nothing odd was found in what was looked at.", id="odd")
    heading = tag("p", tag("strong", "Odd: "), "look at these first.")
    return tag("div", heading, tag("ul", *(tag("li", text) for text in odd)), class_="odd", id="odd")


def _what(report: Report) -> list[Markup]:
    summary = report.facts.summary
    rows = [(name, shortened(value, 400)) for name, value in settings_of(summary).items()]
    picture = flow("Lineage", "The steps that led to this pool, first to last.", lineage_steps(summary))
    numbers = [
        (
            str(number),
            shortened(step.operation),
            step.parent_digest or "",
            shortened(str(step.parameters), 400),
        )
        for number, step in enumerate(summary.lineage, 1)
    ]
    parts = [
        table(("", ""), rows),
        tag("h3", "Lineage"),
        picture,
        folded(
            "Numbers", table(("step", "operation", "from pool", "parameters"), numbers, caption="Lineage")
        ),
    ]
    parts += [tag("h3", "Commands that make it again"), tag("pre", "\n".join(report.recipe))]
    if report.command:
        parts += [tag("h3", "Command that made this page"), tag("pre", report.command)]
    heading = f"Files and their SHA-256 (the first {len(report.files)})"
    return [*parts, folded(heading, table(("file", "size", "SHA-256"), report.files, caption=heading))]


def _views(report: Report) -> list[Markup]:
    if not report.shown:
        return [tag("p", "There are no views to show.")]
    some = "all" if report.sample.whole else "a random sample of"
    says = (
        f"{len(report.shown)} views out of {some} {len(report.sample.rows):,} rows, with the most and the "
        "least confident among them. Buttons and arrow keys turn the pages."
    )
    sheet = Sheet(
        facts=report.facts, sample=report.sample, shown=report.shown, against=report.against is not None
    )
    return [tag("p", says), sheet.markup()]


def _kept(report: Report) -> list[Markup]:
    fidelity = report.sample.fidelity
    if fidelity is None:
        return [tag("p", "No batch of the two pools could be compared.")]
    says = (
        f"Measured on {fidelity.rows:,} rows of {report.sample.shared:,} batches that this pool shares with "
        f"{shortened(report.against or '')}."
    )
    items = [
        Bar(label=f"T = {temperature:g}", value=max(kept, 0.0), text=f"{100 * kept:.3f} %", colour=number)
        for number, (temperature, kept) in enumerate(fidelity.kept.items())
    ]
    kept_chart: Chart = bars(
        "Information kept",
        "1 - KL(original, decoded) / KL(original, uniform) at temperatures 1, 4 and 20; 100 % is everything.",
        items,
        headers=("kept",),
    )
    same = Bar(label="same strongest class", value=fidelity.top1, text=percent(fidelity.top1), colour=3)
    lost = Bar(label="another one", value=1 - fidelity.top1, text=percent(1 - fidelity.top1), colour=4)
    agree = bars(
        "Top-1 agreement", "Rows whose strongest class the codec kept.", [same, lost], headers=("rows",)
    )
    return [tag("p", says), charts_in_grid([kept_chart, agree])]
