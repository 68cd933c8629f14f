"""Draws the pictures of docs/concepts.md: `python docs/tools/pictures.py` writes docs/images/*.svg.

The picture of pruning is no sketch: it asks the code which batches of a pool of seed 0 each ratio keeps.
"""

from __future__ import annotations

from pathlib import Path

from lpld_labels.format.random_streams import lowest_ranked
from lpld_labels.format.records import BatchKey
from lpld_labels.transforms.prune import kept_count

IMAGES = Path(__file__).resolve().parents[1] / "images"
PAPER, INK, FAINT, LINE = "#fbfaf7", "#24302f", "#66716f", "#b9c2bf"
SKY, HILL, SUN, HOUSE = "#cfe6ef", "#7fae8d", "#e9b44c", "#b5563f"
NIGHT, SEA, MOON = "#3c4a6b", "#27567b", "#f2ead3"
TEAL, ACCENT = "#00796b", "#d9480f"
FONT = "font-family='system-ui, sans-serif'"


def text(x: float, y: float, words: str, *, size: int = 14, color: str = INK, more: str = "") -> str:
    """Return a line of text."""
    return f"<text x='{x}' y='{y}' font-size='{size}' fill='{color}' {FONT} {more}>{words}</text>"


def box(x: float, y: float, w: float, h: float, fill: str, more: str = "") -> str:
    """Return a rectangle."""
    return f"<rect x='{x}' y='{y}' width='{w}' height='{h}' fill='{fill}' {more}/>"


def svg(width: int, height: int, title: str, parts: list[str], defs: str = "") -> str:
    """Return a document on paper of its own, so that it reads on light and dark pages."""
    paper = box(0, 0, width, height, PAPER, "rx='10'")
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' role='img'>"
    return "\n".join([head, f"<title>{title}</title>", f"<defs>{defs}</defs>", paper, *parts, "</svg>", ""])


def day(side: float) -> str:
    """Return a picture of a house by day, `side` wide and high, at the origin."""
    unit = side / 10
    roof = f"{unit * 5.6},{unit * 5.2} {unit * 7.2},{unit * 3.6} {unit * 8.8},{unit * 5.2}"
    return "".join(
        [
            box(0, 0, side, side, SKY),
            f"<circle cx='{unit * 2.2}' cy='{unit * 2.2}' r='{unit * 1.1}' fill='{SUN}'/>",
            f"<ellipse cx='{unit * 5}' cy='{side}' rx='{unit * 7}' ry='{unit * 3.4}' fill='{HILL}'/>",
            box(unit * 6, unit * 5.1, unit * 2.4, unit * 2.4, HOUSE),
            f"<polygon points='{roof}' fill='{INK}'/>",
        ]
    )


def night(side: float) -> str:
    """Return a picture of the sea by night."""
    unit = side / 10
    deck, keel = unit * 6.4, unit * 7.4
    boat = f"{unit * 3},{deck} {unit * 5.4},{deck} {unit * 4.8},{keel} {unit * 3.6},{keel}"
    sail = f"{unit * 4.1},{unit * 3.2} {unit * 4.1},{unit * 6.1} {unit * 6},{unit * 6.1}"
    return "".join(
        [
            box(0, 0, side, side, NIGHT),
            f"<circle cx='{unit * 7.6}' cy='{unit * 2.4}' r='{unit}' fill='{MOON}'/>",
            box(0, unit * 6.8, side, unit * 3.2, SEA),
            f"<polygon points='{boat}' fill='{HOUSE}'/>",
            f"<polygon points='{sail}' fill='{MOON}'/>",
        ]
    )


def framed(x: float, y: float, side: float, inside: str) -> str:
    """Return a square at (x, y) that shows what is inside it and nothing beside it."""
    return f"<svg x='{x}' y='{y}' width='{side}' height='{side}' overflow='hidden'>{inside}</svg>" + box(
        x, y, side, side, "none", f"stroke='{LINE}'"
    )


def arrow(x: float, y: float, length: float = 34) -> str:
    """Return an arrow to the right."""
    return (
        f"<path d='M{x} {y}h{length - 7}' stroke='{FAINT}' stroke-width='2'/>"
        f"<path d='M{x + length - 9} {y - 5}l9 5l-9 5z' fill='{FAINT}'/>"
    )


def view_picture() -> str:
    """Return how a view is made: crop, resize, flip, mix, teacher."""
    side, top = 132, 58
    columns = [20 + number * 172 for number in range(4)]
    crop = (0.32, 0.22, 0.6)
    zoom = side / (crop[2] * side)
    shift = f"scale({zoom}) translate({-crop[0] * side} {-crop[1] * side})"
    cropped = f"<g transform='{shift}'>{day(side)}</g>"
    flipped = f"<g transform='translate({side} 0) scale(-1 1)'>{cropped}</g>"
    cut = (0.27 * side, 0.3 * side, 0.45 * side, 0.5 * side)
    clip = f"<clipPath id='cut'>{box(*cut, 'black')}</clipPath>"
    outline = box(*cut, "none", f"stroke='{ACCENT}' stroke-width='3'")
    mixed = f"{flipped}<g clip-path='url(#cut)'>{night(side)}</g>{outline}"
    marked = f"stroke='{ACCENT}' stroke-width='3'"
    chosen = box(crop[0] * side, crop[1] * side, crop[2] * side, crop[2] * side, "none", marked)
    frames = [day(side) + chosen, cropped, flipped, mixed]
    heads = ["1 crop", "2 resize", "3 flip", "4 mix"]
    notes = [
        ("image, crop_top, crop_left,", "crop_height, crop_width"),
        ("the same code for teacher", "and student"),
        ("flip", ""),
        ("mix_slot, mix_strength,", "mix_top ... mix_right"),
    ]
    parts = [text(20, 30, "How slot 5 of a label batch is made", size=17, more="font-weight='600'")]
    for x, frame, head, (first, second) in zip(columns, frames, heads, notes, strict=True):
        parts += [text(x, top - 6, head, color=TEAL, more="font-weight='600'"), framed(x, top, side, frame)]
        parts += [text(x, top + side + 20, first, size=12, color=FAINT)]
        parts += [text(x, top + side + 36, second, size=12, color=FAINT)]
    parts += [arrow(x + side + 3, top + side / 2) for x in columns]
    end = columns[-1] + 172
    heights = [14, 9, 22, 84, 12, 18, 47, 8, 11, 15]
    bars = [box(end + i * 12, top + side - h, 9, h, TEAL if h > 40 else LINE) for i, h in enumerate(heights)]
    parts += [text(end, top - 6, "5 teacher", color=TEAL, more="font-weight='600'"), *bars]
    parts += [text(end, top + side + 20, "labels: C numbers,", size=12, color=FAINT)]
    parts += [text(end, top + side + 36, "the codec's bytes", size=12, color=FAINT)]
    partner = text(columns[3] - 110, top + side + 78, "slot 2 of the same batch", size=12, color=FAINT)
    parts += [framed(columns[3] + 40, top + side + 50, 52, night(52)), partner]
    dashes = f"stroke='{FAINT}' stroke-width='2' stroke-dasharray='3 3'"
    parts += [f"<path d='M{columns[3] + 66} {top + side + 48}v-6' {dashes}/>"]
    title = "An image is cropped, resized, flipped and mixed with another slot; the teacher labels the result"
    return svg(860, 316, title, parts, clip)


LEVELS = ((1, "#dfe5e2"), (10, "#8cc9bd"), (20, "#2a9d8f"), (40, "#00483f"))
"""Prune ratio -> color of a batch that survives it but not the next."""
EPOCHS, BATCHES = 10, 40


def pruning_picture() -> str:
    """Return which batches of a pool of 10 epochs of 40 batches each ratio keeps."""
    keys = [BatchKey(epoch, batch) for epoch in range(EPOCHS) for batch in range(BATCHES)]
    kept = {ratio: set(lowest_ranked(0, keys, kept_count(len(keys), ratio))) for ratio, _ in LEVELS}
    cell, left, top = 17, 84, 78
    parts = [text(20, 30, "Which label batches stay", size=17, more="font-weight='600'")]
    parts += [text(left, top - 12, "batch 0 ... 39 of the epoch", size=12, color=FAINT)]
    for epoch in range(EPOCHS):
        parts.append(text(20, top + epoch * cell + 12, f"epoch {epoch}", size=12, color=FAINT))
        for batch in range(BATCHES):
            color = [color for ratio, color in LEVELS if BatchKey(epoch, batch) in kept[ratio]][-1]
            parts.append(box(left + batch * cell, top + epoch * cell, cell - 3, cell - 3, color, "rx='2'"))
    bottom = top + EPOCHS * cell + 30
    places = (20, 170, 380, 600)
    for x, (ratio, color) in zip(places, LEVELS, strict=True):
        words = "all: 1x" if ratio == 1 else f"stays at {ratio}x"
        parts += [box(x, bottom - 12, 14, 14, color, "rx='2'")]
        parts += [text(x + 20, bottom, f"{words} ({len(kept[ratio])})", size=13)]
    words = "Each colour counts the darker ones too: 40x is inside 20x, 20x inside 10x."
    parts += [text(20, bottom + 28, words, size=13, color=FAINT)]
    title = "A grid of label batches; harder prunings keep a subset of milder ones"
    return svg(790, bottom + 46, title, parts)


PICTURES = {"view.svg": view_picture, "pruning.svg": pruning_picture}


def main() -> None:
    """Write all pictures."""
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw())


if __name__ == "__main__":
    main()
