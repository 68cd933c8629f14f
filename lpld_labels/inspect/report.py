"""The report on one pool, as a page: settings, size, warnings, and some of its views and labels.

templates/parts.html draws each `Chart` as SVG, with a table of its numbers. Colours are CSS classes: the
style sheet defines them for light and dark screens and for paper.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lpld_labels.exec.job import Progress
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import ViewBatch
from lpld_labels.inspect.compare import pool_names
from lpld_labels.inspect.page import jpeg_uri, render_page
from lpld_labels.inspect.sample import OTHER, OWN, PARTNER, PoolFacts, Sample, gather_facts, take_sample
from lpld_labels.inspect.summary import COMPONENT_NAMES, PoolSummary, step_words
from lpld_labels.inspect.text import human_bytes, percent, short_number, shortened
from lpld_labels.pool.packing import packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import find_images
from lpld_labels.render.store import ImageStore

_FILES_SHOWN = 40
_BINS = 20
_NAMED = 3
_SUM_TOLERANCE = 0.02
_ENOUGH_ROWS = 100
_VIEWS = 96
_EXTREMES = 12  # Most confident labels shown, and as many of the least confident.
_PICTURE_BYTES = 3_600_000  # In base64, of all pictures. The page is limited to 5 MB.
_STORE_BYTES = 64 * 1024 * 1024  # Small, because most images are shown only once.
_SOURCE_SIDE = 192
_QUALITY, _SOURCE_QUALITY = 92, 80
_SEED = 19
WIDTH = 400
COLOURS = 6
_LEFT, _RIGHT, _TOP, _HEIGHT = 46, 12, 10, 150
_FLOOR = _TOP + _HEIGHT
_BAR_HEIGHT = 36
_LETTERS_PER_LINE = 62
Whole = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Report:
    """Everything the page shows. cards: see `_cards`. recipe: commands that reproduce the pool."""

    facts: PoolFacts
    sample: Sample
    cards: Sequence[dict[str, Any]]
    warnings: Sequence[str]
    recipe: Sequence[str]


def make_report(
    pool: PoolReader,
    *,
    images: Path | None = None,
    recipe: Sequence[str] = (),
    progress: Progress | None = None,
) -> Report:
    """Make a report from manifest, index and sampled labels. images: folder; None: images in the pool."""
    facts = gather_facts(pool)
    source = packed_images(pool) if images is None else find_images(pool, images)
    sample = take_sample(pool, progress=progress)
    store = None
    # Without torch there are no pixels, and views are drawn as boxes.
    if source is not None and find_spec("torch") is not None:
        store = ImageStore(source, memory_bytes=_STORE_BYTES)
    return Report(
        facts=facts,
        sample=sample,
        cards=_cards(pool, facts, sample, store),
        warnings=_warnings(facts, sample),
        recipe=recipe,
    )


def report_page(report: Report) -> bytes:
    """Return the report as an HTML file."""
    facts, summary = report.facts, report.facts.summary
    files = summary.manifest.files[:_FILES_SHOWN]
    names = {
        "class": facts.names,
        "image": facts.images.paths,
        "batch": [str(key) for key in report.sample.keys],
    }
    picked = {kind: sorted({int(card[kind]) for card in report.cards}) for kind in names}
    return render_page(
        "report.html",
        report=report,
        summary=summary,
        name=pool_names([summary.location])[0],
        steps=_steps(summary),
        settings=[(name, shortened(value, 400)) for name, value in summary.settings().items()],
        files=[(shortened(file.path), human_bytes(file.bytes), file.digest) for file in files],
        size=_size_charts(summary),
        filters={kind: [(number, names[kind][number]) for number in picked[kind]] for kind in names},
        spread=_spread_charts(facts, report.sample),
    )


def _steps(summary: PoolSummary) -> list[dict[str, Any]]:
    lineage = summary.manifest.header.lineage
    digests = [step.parent_digest or "" for step in lineage[1:]] + [summary.manifest.content_digest]
    return [
        {"operation": step.operation, "digest": digest, "known": step_words(step)}
        for step, digest in zip(lineage, digests, strict=False)
    ]


def _size_charts(summary: PoolSummary) -> list[Chart]:
    total, original, counts = summary.total_bytes, summary.pickle_bytes, summary.manifest.counts
    than = "more than" if original < total else f"{original / total:.2f} times less than"
    says = (
        f"{summary.bytes_per_row:,.1f} bytes per row, {human_bytes(summary.bytes_per_image)} per image; "
        f"{than} one pickle per batch. Plain fp16 labels alone would be {human_bytes(summary.fp16_bytes)}."
    )
    layouts = {"this pool": summary.components, "original layout": summary.pickle_components}
    totals, parts = [], []
    for colour, (name, components) in enumerate(layouts.items()):
        size = sum(components.values())
        more = (f"{size / max(counts.rows, 1):,.1f}", human_bytes(size / max(counts.images, 1)))
        totals.append(Bar(label=name, value=size, text=human_bytes(size), colour=colour, more=more))
    for component, component_name in COMPONENT_NAMES.items():
        for colour, (name, components) in enumerate(layouts.items()):
            size, label = components[component], f"{component_name}: {name}"
            each = (f"{size / max(counts.rows, 1):.2f}",)
            if summary.components[component] or summary.pickle_components[component]:
                parts.append(Bar(label=label, value=size, text=human_bytes(size), colour=colour, more=each))
    return [
        bars("Bytes in all", says, totals, headers=("in all", "bytes per row", "per image")),
        bars(
            "Bytes by component", "The components add up to all files.", parts, headers=("bytes", "per row")
        ),
    ]


def _spread_charts(facts: PoolFacts, sample: Sample) -> list[Chart]:
    rows = sample.rows
    over = f"over {'all' if sample.whole else 'a random sample of'} {len(rows):,} rows"
    mixed = rows.strength[~np.isnan(rows.strength)]
    bits = float(np.log2(facts.summary.manifest.header.classes))
    epochs, seen = facts.epochs, facts.class_views[facts.class_images > 0]
    span = f"{int(epochs[0])} to {int(epochs[-1])}" if len(epochs) else "none"
    of_epochs = f"Label batches of {len(epochs):,} epochs (numbers {span})."
    undecided = f"How undecided labels are at temperature 1, {over}; at most {bits:.3g} bits."
    strongest = f"Probability of the strongest class at temperature 1, {over}."
    shown = f"Share of the source image that a view shows, {over}."
    weight = f"Weight of the view itself in its mix, {over}; {len(mixed):,} of them were mixed."
    return [
        _whole_numbers("Views per image", "Views of each image.", facts.image_views, None, "views", "images"),
        _whole_numbers("Views per class", "Views of each class.", seen, None, "views", "classes"),
        _whole_numbers("Epochs covered", of_epochs, epochs, facts.epoch_batches, "epoch", "batches"),
        _shares("Label entropy", undecided, rows.entropy, max(bits, 1e-9), "bits", "labels"),
        _shares("Confidence", strongest, rows.confidence, 1.0, "probability", "labels"),
        _shares("Crop area", shown, rows.area, 1.0, "share", "views"),
        _shares("Mix strength", weight, mixed, 1.0, "weight", "views"),
        _agreement_chart(rows.agreement, over),
    ]


def _agreement_chart(agreement: Whole, over: str) -> Chart:
    names = {OWN: "own class strongest", PARTNER: "partner's class strongest", OTHER: "another class"}
    items = []
    for colour, (code, name) in enumerate(names.items()):
        count = int((agreement == code).sum())
        share = count / max(len(agreement), 1)
        items.append(Bar(label=name, value=share, text=f"{percent(share)} ({count:,})", colour=colour))
    says = f"Whose class the label puts first, {over}."
    found = items if len(agreement) else []
    return bars("Agreement with the true class", says, found, headers=("share of labels",))


def _shares(title: str, says: str, values: Doubles, most: float, unit: str, counted: str) -> Chart:
    edges = np.linspace(0, most, _BINS + 1)
    # Rounding may raise a confidence above 1: count it in the last column.
    counts, _ = np.histogram(np.clip(values[np.isfinite(values)], 0, most), edges)
    return histogram(title, says, edges.tolist(), counts.tolist(), unit=unit, counted=counted)


def _whole_numbers(
    title: str, says: str, values: Whole, weights: Whole | None, unit: str, counted: str
) -> Chart:
    low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
    width = -(-(high - low + 1) // _BINS)
    # Add a few empty columns: a single column would fill the chart.
    low = max(low - 2, 0) if high - low < 4 else low
    columns = max(-(-(high - low + 1) // width), 5)
    edges = low + width * np.arange(columns + 1, dtype=np.float64)
    counts, _ = np.histogram(values, edges, weights=weights)
    heights = counts.astype(int).tolist()
    return histogram(title, says, edges.tolist(), heights, unit=unit, counted=counted, whole=True)


def _cards(
    pool: PoolReader, facts: PoolFacts, sample: Sample, store: ImageStore | None
) -> list[dict[str, Any]]:
    """Return the cards that templates/report.html shows: one per view, as many as fit on the page."""
    cards: dict[int, dict[str, Any]] = {}
    left = _PICTURE_BYTES
    for row in _choose_rows(sample.rows.confidence):
        card = _card(pool, facts, sample, row, store)
        left -= sum(len(picture["uri"] or "") for picture in card["pictures"])
        if left < 0:
            break
        cards[row] = card
    return [cards[row] for row in sorted(cards)]


def _choose_rows(confidence: Doubles) -> list[int]:
    """Return the rows to show: labels that are not finite, most and least confident labels, random rows."""
    usable = np.flatnonzero(~np.isnan(confidence))
    ranked = usable[np.argsort(confidence[usable], kind="stable")]
    broken = np.flatnonzero(np.isnan(confidence))[:_EXTREMES]
    extremes = np.stack([ranked[::-1][:_EXTREMES], ranked[:_EXTREMES]], axis=1).ravel()
    order = keyed_generator(_SEED, len(confidence)).permutation(len(confidence))
    return list(dict.fromkeys(np.concatenate([broken, extremes, order]).tolist()))[:_VIEWS]


def _card(
    pool: PoolReader, facts: PoolFacts, sample: Sample, number: int, store: ImageStore | None
) -> dict[str, Any]:
    row, images = sample.rows[number], facts.images
    key, slot = sample.keys[int(row.batch)], int(row.slot)
    views = pool.read_views(key)
    own = int(images.classes[row.image])
    partner = int(images.classes[row.partner]) if views.mix is not None else None
    shuffled = " (patches shuffled first)" if views.patch_order is not None else ""
    pictures = [
        _source(facts, views, slot, store, f"source image with its crop{shuffled}"),
        _seen(pool, views, slot, store),
    ]
    if views.mix is not None and partner is not None:
        says = f"partner: {shortened(facts.names[partner])}, with its crop"
        pictures.append(_source(facts, views, int(views.mix.partner[slot]), store, says))
    labels = [
        {
            "number": label,
            "name": facts.names[label],
            "mark": " \u2713 own" if label == own else " \u2713 partner's" if label == partner else "",
            "colour": 0 if label == own else 1 if label == partner else 2,
            "share": share,
            "stored": stored,
            "text": "not finite" if np.isnan(share) else f"{share:.4f}",
        }
        for label, share, stored in zip(
            row.top.tolist(), row.shares.tolist(), row["values"].tolist(), strict=True
        )
    ]
    return {
        "class": own,
        "image": int(row.image),
        "batch": int(row.batch),
        "key": f"{key.epoch}/{key.batch}",
        "slot": slot,
        "confidence": float(row.confidence),
        "class_name": facts.names[own],
        "path": images.paths[row.image],
        "line": _line(views, slot, float(row.entropy)),
        "pictures": pictures,
        "labels": labels,
        "numbers": [
            (shortened(one["name"]) + one["mark"], one["text"], f"{one['stored']:.5g}") for one in labels
        ],
    }


def _source(
    facts: PoolFacts, views: ViewBatch, slot: int, store: ImageStore | None, says: str
) -> dict[str, Any]:
    image, uri = int(views.images[slot]), None
    if store is not None:
        picture = Image.fromarray(store[image])
        picture.thumbnail((_SOURCE_SIDE, _SOURCE_SIDE))
        uri = jpeg_uri(picture, _SOURCE_QUALITY)
    height, width = int(facts.images.heights[image]), int(facts.images.widths[image])
    top, left, rows, columns = views.crops[slot].tolist()
    box = {"x": left, "y": top, "width": columns, "height": rows}
    return {"kind": "source", "uri": uri, "height": height, "width": width, "says": says, "box": box}


def _seen(pool: PoolReader, views: ViewBatch, slot: int, store: ImageStore | None) -> dict[str, Any]:
    how, uri, box = pool.header.augmentation, None, None
    if store is not None:
        from lpld_labels.render.apply import apply_views, take_views

        pixels = apply_views(take_views(views, np.array([slot])), store, how)[0]
        uri = jpeg_uri(Image.fromarray(pixels.round().byte().permute(1, 2, 0).numpy()), _QUALITY)
    says = "the view as the student sees it"
    if views.mix is not None and views.mix.box is not None:
        mixed = views.mix.box
        width, height = mixed.right - mixed.left, mixed.bottom - mixed.top
        box = {"x": mixed.left, "y": mixed.top, "width": width, "height": height}
        says += "; the partner's pixels are outlined"
    height, width = how.output_height, how.output_width
    return {"kind": "seen", "uri": uri, "height": height, "width": width, "says": says, "box": box}


def _line(views: ViewBatch, slot: int, bits: float) -> str:
    top, left, height, width = views.crops[slot].tolist()
    words = [f"{views.key}, slot {slot}", f"crop {width} x {height} at ({left}, {top})"]
    words.append("mirrored" if views.flips[slot] else "not mirrored")
    if views.mix is not None:
        mix = "MixUp" if views.mix.box is None else "CutMix"
        words.append(f"{mix}, own weight {views.mix.strength:.3f}")
    if views.cutout is not None:
        words.append("part painted over")
    if not np.isnan(bits):
        words.append(f"entropy {bits:.2f} bits")
    return "; ".join(words)


def _warnings(facts: PoolFacts, sample: Sample) -> list[str]:
    if not facts.summary.manifest.counts.batches:
        return ["The pool holds no label batch: nothing was labelled, or all was pruned away."]
    found = _coverage(facts)
    if sample.unreadable:
        first = shortened(sample.unreadable[0], 300)
        found.append(f"Batches that cannot be read: {len(sample.unreadable):,} ({first}).")
    if len(sample.rows):
        found += [*_labels(facts, sample), *_agreement(facts, sample)]
    return found


def _coverage(facts: PoolFacts) -> list[str]:
    counts, header = facts.summary.manifest.counts, facts.summary.manifest.header
    found: list[str] = []
    unseen = np.flatnonzero(facts.image_views == 0)
    if len(unseen):
        names = _some(facts.images.paths, unseen)
        found.append(f"Images never seen as themselves: {len(unseen):,} of {counts.images:,} ({names}).")
    empty = np.flatnonzero(facts.class_images[: header.classes] == 0)
    if len(empty):
        names = _some(facts.names, empty)
        found.append(f"Classes without an image: {len(empty):,} of {header.classes:,} ({names}).")
    missing = np.flatnonzero((facts.class_images > 0) & (facts.class_views == 0))
    if len(missing):
        names = _some(facts.names, missing)
        found.append(f"Classes missing, with images but not one view: {len(missing):,} ({names}).")
    beyond = int(facts.class_images[header.classes :].sum())
    if beyond:
        found.append(f"Images of a class beyond the labels' {header.classes:,} columns: {beyond:,}.")
    if counts.incomplete_batches:
        size = header.batch_size
        found.append(f"Incomplete batches, of fewer than {size:,} rows: {counts.incomplete_batches:,}.")
    return found


def _labels(facts: PoolFacts, sample: Sample) -> list[str]:
    rows, found = sample.rows, []
    looked = f"of {len(rows):,} looked at"
    broken = np.flatnonzero(np.isnan(rows.confidence))
    if len(broken):
        image = shortened(facts.images.paths[int(rows.image[broken[0]])])
        where = f"the first of image {image} in {sample.keys[int(rows.batch[broken[0]])]}"
        found.append(f"Labels that are not finite (NaN or infinite): {len(broken):,} {looked}, {where}.")
    constant = int(rows.constant.sum())
    if constant:
        found.append(f"Constant labels, the same value for every class: {constant:,} {looked}.")
    same = (rows.top == rows.top[0]).all() and (rows["values"] == rows["values"][0]).all()
    if len(rows) > 1 and same and not constant:
        found.append("All labels looked at are the same.")
    off = int((np.abs(rows.total - 1) > _SUM_TOLERANCE).sum())
    if off:
        found.append(f"Probabilities that do not add up to 1: {off:,} {looked}.")
    mix = facts.summary.manifest.header.augmentation.mix
    unmixed = int(np.isnan(rows.strength).sum())
    if mix != "none" and unmixed:
        found.append(f"Views that were not mixed, though the pool says {mix}: {unmixed:,}.")
    return found


def _agreement(facts: PoolFacts, sample: Sample) -> list[str]:
    """Warn if labels match the true classes hardly more often than by chance: class order may be wrong."""
    rows = sample.rows
    agreeing = float((rows.agreement != OTHER).mean())
    two = (rows.partner >= 0) & (facts.images.classes[rows.partner] != facts.images.classes[rows.image])
    chance = float((1 + two).mean()) / facts.summary.manifest.header.classes
    if len(rows) < _ENOUGH_ROWS or agreeing >= min(max(1.5 * chance, 0.05), 0.5):
        return []
    agrees = f"The strongest class is an image's own or its partner's in {percent(agreeing)} of the labels"
    return [f"{agrees}, where chance gives {percent(chance)}: are images and labels in the same class order?"]


def _some(names: Sequence[str], places: Whole) -> str:
    listed = ", ".join(shortened(names[place]) for place in places[:_NAMED].tolist())
    return listed + (f" and {len(places) - _NAMED:,} more" if len(places) > _NAMED else "")


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart and its numbers as a table. kind: macro that draws `shapes`. marks: number of bars."""

    title: str
    says: str
    kind: str
    shapes: dict[str, Any]
    height: float
    marks: int
    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    width: int = WIDTH


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One horizontal bar. colour: 0 to 5. spread: half the length of a whisker. more: further table cells."""

    label: str
    value: float
    text: str
    colour: int = 0
    spread: float = 0.0
    more: tuple[str, ...] = ()


def bars(title: str, says: str, items: Sequence[Bar], *, headers: tuple[str, ...] = ("value",)) -> Chart:
    """Return horizontal bars, each below its label. headers: titles of the table columns after the label."""
    across = scale([item.value + item.spread for item in items], 0, WIDTH - 4)
    drawn = [
        {
            "label": shortened(item.label, max(_LETTERS_PER_LINE - len(item.text), 8)),
            "text": item.text,
            "title": f"{shortened(item.label)}: {item.text}",
            "colour": item.colour % COLOURS,
            "width": max(across(item.value), 1.0),
            "whisker": [across(item.value + side) for side in (-item.spread, item.spread) if side],
        }
        for item in items
    ]
    return Chart(
        title=title,
        says=says,
        kind="bars",
        shapes={"bars": drawn, "bar_height": _BAR_HEIGHT},
        height=max(len(items) * _BAR_HEIGHT, 40),
        marks=len(items),
        headers=("", *headers),
        rows=[(shortened(item.label), item.text, *item.more) for item in items],
    )


def histogram(
    title: str,
    says: str,
    edges: Sequence[float],
    counts: Sequence[int],
    *,
    unit: str,
    counted: str,
    whole: bool = False,
) -> Chart:
    """Return a histogram. counts: [n]. edges: [n + 1]. whole: bars count integers below their upper edge."""
    across = Scale(low=edges[0], high=edges[-1], start=_LEFT, end=WIDTH - _RIGHT)
    up = scale(counts, _FLOOR, _TOP)
    ticks = [(value, value) for value in across.ticks(4)]
    if whole:
        # A column of one number has its tick in the middle.
        middle = 0.5 if edges[1] - edges[0] == 1 else 0.0
        ticks = [(edge + middle, edge) for edge in edges[: -1 : -(-(len(edges) - 1) // 5)]]
    columns, rows = [], []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        end = high - 1 if whole else high
        name = short_number(low) if end == low else f"{short_number(low)} to {short_number(end)}"
        rows.append((name, f"{count:,}"))
        if count:
            left, right, top = across(low) + 0.5, across(high) - 0.5, min(up(count), _FLOOR - 0.7)
            path = f"M{left:.2f} {_FLOOR}V{top:.2f}H{max(right, left + 0.7):.2f}V{_FLOOR}z"
            columns.append((path, f"{name}: {count:,} {counted}"))
    return Chart(
        title=title,
        says=says,
        kind="axes",
        shapes={
            "x": unit,
            "y": counted,
            "left": _LEFT,
            "right": WIDTH - _RIGHT,
            "floor": _FLOOR,
            "y_ticks": [(up(value), short_number(value)) for value in up.ticks(4)],
            "x_ticks": [(across(place), short_number(value)) for place, value in ticks],
            "marks": columns,
        },
        height=_FLOOR + 40,
        marks=len(columns),
        headers=(unit, counted),
        rows=rows,
    )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Maps values linearly: `low` to `start` and `high` to `end`. Clamps values beyond these."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, wanted: int = 5) -> list[float]:
        rough = (self.high - self.low) / wanted
        power = 10 ** math.floor(math.log10(rough))
        step = next(power * nice for nice in (1, 2, 2.5, 5, 10) if power * nice >= rough)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def scale(values: Iterable[float], start: float, end: float) -> Scale:
    """Return a scale that covers zero and all finite values."""
    usable = [0.0, *(float(value) for value in values if math.isfinite(value))]
    low, high = min(usable), max(usable)
    return Scale(low=low, high=high if high > low else low + 0.5, start=start, end=end)
