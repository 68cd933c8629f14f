"""Which views the sheet shows, and their pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import ViewBatch
from lpld_labels.inspect.pages.pictures import jpeg_uri
from lpld_labels.inspect.report.sample import Sample
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.image_source import ImageSource
from lpld_labels.render.picture import view_picture
from lpld_labels.render.store import ImageStore

VIEWS = 96
EXTREMES = 12
"""How many of the most and of the least confident ones are among them."""
PICTURE_BYTES = 3_600_000
"""Bytes of all pictures as text; the page may have 5 MB."""
SOURCE_SIDE = 192
QUALITY, SOURCE_QUALITY = 92, 80
_SEED = 19


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Data URIs of a view, its source and its partner's source; None where images are not at hand."""

    view: str | None = None
    source: str | None = None
    partner: str | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class ShownView:
    """A view on the sheet: `row` in the sample, the batch it is in, its slot and its pictures."""

    row: int
    views: ViewBatch
    slot: int
    pictures: Pictures


def choose_rows(sample: Sample, most: int = VIEWS) -> list[int]:
    """Return rows of the sample: the most and the least confident, the rest at random, in sample order."""
    rows = sample.rows
    usable = np.flatnonzero(~np.isnan(rows.confidence))
    ranked = usable[np.argsort(rows.confidence[usable], kind="stable")]
    chosen = dict.fromkeys([*ranked[-EXTREMES:].tolist(), *ranked[:EXTREMES].tolist()])
    # Labels that are not finite are shown first of all: they are what one came to see.
    broken = np.flatnonzero(np.isnan(rows.confidence))[:EXTREMES].tolist()
    order = keyed_generator(_SEED, len(rows)).permutation(len(rows))
    everything = dict.fromkeys([*broken, *chosen, *order.tolist()])
    return sorted(list(everything)[:most])


def shown_views(
    pool: PoolReader, sample: Sample, images: ImageSource | None, *, progress: Progress | None = None
) -> list[ShownView]:
    """Return the views of the sheet with their pictures, as many as fit the page."""
    rows = choose_rows(sample)
    render = None if images is None else _Renderer(pool.header.augmentation, images)
    shown: dict[int, ShownView] = {}
    left = PICTURE_BYTES
    # Extremes first: if pictures are large and room runs out, ordinary views are what is left out.
    for done, row in enumerate(_important_first(sample, rows), 1):
        views = pool.read_views(sample.keys[int(sample.rows.batch[row])])
        slot = int(sample.rows.slot[row])
        pictures = Pictures() if render is None else render(views, slot)
        left -= sum(len(uri or "") for uri in (pictures.view, pictures.source, pictures.partner))
        if left < 0:
            break
        shown[row] = ShownView(row=row, views=views, slot=slot, pictures=pictures)
        if progress is not None:
            progress(done, len(rows))
    return [shown[row] for row in sorted(shown)]


def _important_first(sample: Sample, rows: Sequence[int]) -> list[int]:
    ranked = sorted(rows, key=lambda row: np.nan_to_num(sample.rows.confidence[row], nan=-1.0))
    pairs = [row for pair in zip(ranked, reversed(ranked), strict=True) for row in pair]
    return list(dict.fromkeys(pairs))


class _Renderer:
    """Makes pictures of views from their images."""

    def __init__(self, augmentation: Augmentation, images: ImageSource) -> None:
        self._augmentation = augmentation
        # Sources are seldom seen twice; most are decoded once and let go.
        self._store = ImageStore(images, memory_bytes=64 * 1024 * 1024)

    def __call__(self, views: ViewBatch, slot: int) -> Pictures:
        seen = view_picture(views, slot, self._store, self._augmentation)
        partner = None if views.mix is None else int(views.images[views.mix.partner[slot]])
        return Pictures(
            view=jpeg_uri(Image.fromarray(seen), QUALITY),
            source=self._source(int(views.images[slot])),
            partner=None if partner is None else self._source(partner),
        )

    def _source(self, index: int) -> str:
        picture = Image.fromarray(self._store[index])
        picture.thumbnail((SOURCE_SIDE, SOURCE_SIDE))
        return jpeg_uri(picture, SOURCE_QUALITY)
