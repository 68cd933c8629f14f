"""The views that a report shows: which, their pictures, their strongest labels as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from PIL import Image

from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import ViewBatch
from lpld_labels.inspect.charts import Chart, Shape, path, rect, text
from lpld_labels.inspect.page import jpeg_uri
from lpld_labels.inspect.sample import PoolFacts, Sample
from lpld_labels.inspect.text import shortened
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import ImageSource
from lpld_labels.render.store import ImageStore

VIEWS = 96
EXTREMES = 12
"""How many of the most and of the least confident ones are among them."""
PICTURE_BYTES = 3_600_000
"""Bytes of all pictures as text; the page may have 5 MB."""
SOURCE_SIDE = 192
QUALITY, SOURCE_QUALITY = 92, 80
_SEED = 19
_COARSE_BELOW = 160
_BARS_WIDTH, _BAR_ROW = 260, 38


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownView:
    """A view: `row` in the sample, its batch and slot.

    view, source, partner: data URIs of the view and its source images, None where images are not at hand.
    """

    row: int
    views: ViewBatch
    slot: int
    view: str | None = None
    source: str | None = None
    partner: str | None = None


def shown_views(pool: PoolReader, sample: Sample, images: ImageSource | None) -> list[ShownView]:
    """Return the views to show with their pictures, as many as fit the page."""
    augmentation = pool.header.augmentation
    store = None
    # Without torch there are no pixels, and views are drawn as boxes.
    if images is not None and find_spec("torch") is not None:
        # Sources are seldom seen twice; most are decoded once and dropped.
        store = ImageStore(images, memory_bytes=64 * 1024 * 1024)
    shown: list[ShownView] = []
    left = PICTURE_BYTES
    for row in _most_important_first(sample, _choose_rows(sample)):
        views = pool.read_views(sample.keys[int(sample.rows.batch[row])])
        found = ShownView(row=row, views=views, slot=int(sample.rows.slot[row]))
        if store is not None:
            found = _with_pictures(found, store, augmentation)
        left -= sum(len(uri or "") for uri in (found.view, found.source, found.partner))
        if left < 0:
            break
        shown.append(found)
    return sorted(shown, key=lambda view: view.row)


def view_card(facts: PoolFacts, sample: Sample, shown: ShownView, *, outlined: bool) -> dict[str, Any]:
    """Return what the template shows of a view. outlined: draw the other pool's probabilities too."""
    rows, images, row, views, slot = sample.rows, facts.images, shown.row, shown.views, shown.slot
    image, partner, mix = int(rows.image[row]), int(rows.partner[row]), views.mix
    own = int(images.classes[image])
    other = int(images.classes[partner]) if partner >= 0 else None
    shuffled = " (patches shuffled first)" if views.patch_order is not None else ""
    pictures = [
        _source(facts, image, shown.source, views.crops[slot], f"source image with its crop{shuffled}")
    ]
    pictures.append(_seen(facts.summary.manifest.header.augmentation, shown))
    if other is not None and mix is not None:
        says = f"partner: {shortened(facts.names[other])}, with its crop"
        pictures.append(_source(facts, partner, shown.partner, views.crops[int(mix.partner[slot])], says))
    return {
        "class_number": own,
        "image_number": image,
        "batch_number": int(rows.batch[row]),
        "key": f"{views.key.epoch}/{views.key.batch}",
        "slot": slot,
        "confidence": f"{np.nan_to_num(rows.confidence[row], nan=-1.0):.6f}",
        "class_name": facts.names[own],
        "path": images.paths[image],
        "line": _line(shown, float(rows.entropy[row])),
        "pictures": pictures,
        "bars": _bars(facts.names, rows[row], own, other, outlined=outlined),
    }


def _choose_rows(sample: Sample) -> list[int]:
    """Return rows of the sample: not finite ones, the most and the least confident, the rest at random."""
    confidence = sample.rows.confidence
    usable = np.flatnonzero(~np.isnan(confidence))
    ranked = usable[np.argsort(confidence[usable], kind="stable")]
    broken = np.flatnonzero(np.isnan(confidence))[:EXTREMES].tolist()
    order = keyed_generator(_SEED, len(confidence)).permutation(len(confidence))
    chosen = [*broken, *ranked[-EXTREMES:].tolist(), *ranked[:EXTREMES].tolist(), *order.tolist()]
    return sorted(list(dict.fromkeys(chosen))[:VIEWS])


def _most_important_first(sample: Sample, rows: Sequence[int]) -> list[int]:
    """Put extremes first: if room for pictures runs out, ordinary views are left out."""
    ranked = sorted(rows, key=lambda row: np.nan_to_num(sample.rows.confidence[row], nan=-1.0))
    pairs = [row for pair in zip(ranked, reversed(ranked), strict=True) for row in pair]
    return list(dict.fromkeys(pairs))


def _with_pictures(shown: ShownView, store: ImageStore, augmentation: Augmentation) -> ShownView:
    from lpld_labels.render.apply import apply_views, take_views

    views, slot = shown.views, shown.slot

    def small(index: int) -> str:
        picture = Image.fromarray(store[index])
        picture.thumbnail((SOURCE_SIDE, SOURCE_SIDE))
        return jpeg_uri(picture, SOURCE_QUALITY)

    pixels = apply_views(take_views(views, np.array([slot])), store, augmentation)[0]
    seen = pixels.round().byte().permute(1, 2, 0).numpy()
    return ShownView(
        row=shown.row,
        views=views,
        slot=slot,
        view=jpeg_uri(Image.fromarray(seen), QUALITY),
        source=small(int(views.images[slot])),
        partner=None if views.mix is None else small(int(views.images[views.mix.partner[slot]])),
    )


def _source(facts: PoolFacts, image: int, uri: str | None, crop: Any, says: str) -> dict[str, Any]:
    top, left, rows, columns = crop.tolist()
    height, width = int(facts.images.heights[image]), int(facts.images.widths[image])
    box = {"x": left, "y": top, "width": columns, "height": rows}
    return _picture(uri, height, width, says, box, "crop box")


def _seen(how: Augmentation, shown: ShownView) -> dict[str, Any]:
    box, says = None, "the view as the student sees it"
    found = None if shown.views.mix is None else shown.views.mix.box
    if found is not None:
        width, height = found.right - found.left, found.bottom - found.top
        box = {"x": found.left, "y": found.top, "width": width, "height": height}
        says += "; the partner's pixels are outlined"
    picture = _picture(shown.view, how.output_height, how.output_width, says, box, "CutMix region")
    return picture | {"kind": "seen"}


def _picture(
    uri: str | None, height: int, width: int, says: str, box: dict[str, int] | None, box_says: str
) -> dict[str, Any]:
    return {
        "uri": uri,
        "height": height,
        "width": width,
        "says": says,
        "box": box,
        "box_says": box_says,
        "kind": "source",
        "coarse": max(height, width) < _COARSE_BELOW,
    }


def _bars(names: Sequence[str], row: Any, own: int, other: int | None, *, outlined: bool) -> Chart:
    """Return the strongest classes as bars. row: of the sample."""
    shapes: list[Shape] = []
    numbers = []
    for place, label in enumerate(row.top.tolist()):
        share, stored, before = (float(row[name][place]) for name in ("shares", "values", "original"))
        mark = " \u2713 own" if label == own else " \u2713 partner's" if label == other else ""
        value = "not finite" if np.isnan(share) else f"{share:.4f}"
        was = "" if np.isnan(before) else f", was {before:.4f}"
        top = place * _BAR_ROW
        shapes.append(text(0, top + 13, shortened(names[label], 20) + mark, "name-of-class"))
        shapes.append(text(_BARS_WIDTH, top + 13, value + was, "end"))
        shapes.append(rect(0, top + 18, _BARS_WIDTH, 13, "track"))
        data = {
            "data-label": label,
            "data-probability": f"{np.nan_to_num(share, nan=-1.0):.6f}",
            "data-stored": f"{np.nan_to_num(stored, nan=-1.0):.6g}",
        }
        css = f"mark m{0 if label == own else 1 if label == other else 2}"
        says, width = f"{shortened(names[label])}: {value}{was}", _BARS_WIDTH * float(np.nan_to_num(share))
        shapes.append(rect(0, top + 18, width, 13, css, says, **data))
        if was:
            shapes.append(path(f"M0 {top + 17}H{_BARS_WIDTH * before:.1f}V{top + 32}H0z", "original"))
        numbers.append((shortened(names[label]) + mark, value, f"{stored:.5g}", was.removeprefix(", was ")))
    return Chart(
        title="strongest labels as probabilities; \u2713 true classes"
        + ("; outlined: the original" if outlined else ""),
        says="",
        shapes=shapes,
        height=len(row.top) * _BAR_ROW,
        marks=len(row.top),
        headers=("class", "probability", "stored", "original"),
        rows=numbers,
        width=_BARS_WIDTH,
        css="chart bars",
    )


def _line(shown: ShownView, bits: float) -> str:
    """Return crop, flip and mix of a view in words."""
    views, slot = shown.views, shown.slot
    top, left, height, width = views.crops[slot].tolist()
    words = [f"{views.key}, slot {slot}", f"crop {width} x {height} at ({left}, {top})"]
    words.append("mirrored" if views.flips[slot] else "not mirrored")
    if views.mix is not None:
        mix = "MixUp" if views.mix.box is None else "CutMix"
        words.append(f"{mix}, weight of its own {views.mix.strength:.3f}")
    if views.cutout is not None:
        words.append("part painted over")
    if not np.isnan(bits):
        words.append(f"entropy {bits:.2f} bits")
    return "; ".join(words)
