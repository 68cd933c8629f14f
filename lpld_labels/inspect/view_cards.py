"""The views that a report shows: which, their pictures, their strongest labels."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import ViewBatch
from lpld_labels.inspect.page import jpeg_uri
from lpld_labels.inspect.sample import PoolFacts, Sample
from lpld_labels.inspect.text import shortened
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.images import ImageSource
from lpld_labels.render.store import ImageStore

VIEWS = 96
EXTREMES = 12
"""Of the views, so many are the most confident ones and as many the least."""
PICTURE_BYTES = 3_600_000
"""Bytes of all pictures as text; the page may have 5 MB."""
SOURCE_SIDE = 192
QUALITY, SOURCE_QUALITY = 92, 80
_SEED = 19
_COARSE_BELOW = 160


def view_cards(
    pool: PoolReader, facts: PoolFacts, sample: Sample, images: ImageSource | None
) -> list[dict[str, Any]]:
    """Return what templates/report.html shows of each view, for as many views as fit the page."""
    store = None
    # Without torch there are no pixels, and views are drawn as boxes.
    if images is not None and find_spec("torch") is not None:
        # Sources are seldom seen twice; most are decoded once and dropped.
        store = ImageStore(images, memory_bytes=64 * 1024 * 1024)
    cards: dict[int, dict[str, Any]] = {}
    left = PICTURE_BYTES
    for row in _choose_rows(sample.rows.confidence):
        card = _card(pool, facts, sample, row, store)
        left -= sum(len(picture["uri"] or "") for picture in card["pictures"])
        if left < 0:
            break
        cards[row] = card
    return [cards[row] for row in sorted(cards)]


def _choose_rows(confidence: npt.NDArray[np.float64]) -> list[int]:
    """Return rows: not finite ones, the most and the least confident, then random ones."""
    usable = np.flatnonzero(~np.isnan(confidence))
    ranked = usable[np.argsort(confidence[usable], kind="stable")]
    broken = np.flatnonzero(np.isnan(confidence))[:EXTREMES]
    extremes = np.stack([ranked[::-1][:EXTREMES], ranked[:EXTREMES]], axis=1).ravel()
    order = keyed_generator(_SEED, len(confidence)).permutation(len(confidence))
    return list(dict.fromkeys(np.concatenate([broken, extremes, order]).tolist()))[:VIEWS]


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
    labels = []
    for label, share, stored in zip(
        row.top.tolist(), row.shares.tolist(), row["values"].tolist(), strict=True
    ):
        labels.append(
            {
                "number": label,
                "name": facts.names[label],
                "mark": " \u2713 own" if label == own else " \u2713 partner's" if label == partner else "",
                "colour": 0 if label == own else 1 if label == partner else 2,
                "share": share,
                "stored": stored,
                "text": "not finite" if np.isnan(share) else f"{share:.4f}",
            }
        )
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
    """Return a small picture of a view's image with the view's crop."""
    image, uri = int(views.images[slot]), None
    if store is not None:
        picture = Image.fromarray(store[image])
        picture.thumbnail((SOURCE_SIDE, SOURCE_SIDE))
        uri = jpeg_uri(picture, SOURCE_QUALITY)
    height, width = int(facts.images.heights[image]), int(facts.images.widths[image])
    top, left, rows, columns = views.crops[slot].tolist()
    box = {"x": left, "y": top, "width": columns, "height": rows}
    return _picture("source", uri, height, width, says, box, "crop box")


def _seen(pool: PoolReader, views: ViewBatch, slot: int, store: ImageStore | None) -> dict[str, Any]:
    """Return the view as a student sees it."""
    how, uri = pool.header.augmentation, None
    if store is not None:
        from lpld_labels.render.apply import apply_views, take_views

        pixels = apply_views(take_views(views, np.array([slot])), store, how)[0]
        uri = jpeg_uri(Image.fromarray(pixels.round().byte().permute(1, 2, 0).numpy()), QUALITY)
    mixed, box, says = None if views.mix is None else views.mix.box, None, "the view as the student sees it"
    if mixed is not None:
        width, height = mixed.right - mixed.left, mixed.bottom - mixed.top
        box = {"x": mixed.left, "y": mixed.top, "width": width, "height": height}
        says += "; the partner's pixels are outlined"
    return _picture("seen", uri, how.output_height, how.output_width, says, box, "CutMix region")


def _picture(
    kind: str, uri: str | None, height: int, width: int, says: str, box: dict[str, int] | None, box_says: str
) -> dict[str, Any]:
    return {
        "kind": kind,
        "uri": uri,
        "height": height,
        "width": width,
        "says": says,
        "box": box,
        "box_says": box_says,
        "coarse": max(height, width) < _COARSE_BELOW,
    }


def _line(views: ViewBatch, slot: int, bits: float) -> str:
    """Return crop, flip and mix of a view in words."""
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
