"""Labels of a pool looked at: a random choice of whole batches, so that pools of any size take seconds.

Which batches are chosen depends on nothing but the pool's number of batches, so two reports agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs.fidelity import Fidelity, FidelityMeter
from lpld_labels.errors import InvalidArgumentError, PoolCorruptError
from lpld_labels.exec.job import Progress
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey, LabelArray, ViewBatch
from lpld_labels.inspect.report.meaning import Doubles, entropy, probabilities
from lpld_labels.pool.reader import PoolReader

MOST_ROWS = 8192
MOST_VALUES = 1 << 23
"""Label values that are looked at: 8,388 rows of 1000 classes, 803 of 10,450."""
ROWS_AT_ONCE = 128
"""Bounds memory: a batch of 1024 rows and 10,450 classes is 86 MB as float64."""
LEAST_BATCHES = 4
STRONGEST = 5
OWN, PARTNER, OTHER = 0, 1, 2
_SEED = 18
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Some views with their labels' measures; all arrays have n rows.

    batch: int64, place of the batch in Sample.keys. slot, image: int64. partner: int64, the partner's image,
    -1 where nothing was mixed. area: float64, crop area as a share of the image. strength: float64, NaN where
    nothing was mixed. confidence, entropy: float64 at temperature 1; NaN where the label is not finite.
    agreement: int64, whose class is the strongest: OWN, PARTNER or OTHER. constant: bool, all values equal.
    total: float64, sum of the probabilities as stored (1 for logits).
    top: int64 [n, 5], strongest classes; shares, values: float64 [n, 5], their probability and stored value.
    original: float64 [n, 5], their probability in the other pool; NaN where it is not known.
    """

    batch: Integers
    slot: Integers
    image: Integers
    partner: Integers
    area: Doubles
    strength: Doubles
    confidence: Doubles
    entropy: Doubles
    agreement: Integers
    constant: npt.NDArray[np.bool_]
    total: Doubles
    top: Integers
    shares: Doubles
    values: Doubles
    original: Doubles

    def __len__(self) -> int:
        return len(self.batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class Sample:
    """What was looked at.

    keys: the batches. whole: they are all there are. unreadable: batches that could not be read, and why.
    shared: how many batches the other pool has too; fidelity: what this pool kept of its labels.
    """

    keys: Sequence[BatchKey]
    whole: bool
    rows: Rows
    unreadable: tuple[str, ...] = ()
    shared: int = 0
    fidelity: Fidelity | None = None


@dataclass(kw_only=True)
class _Gathered:
    parts: list[Rows] = field(default_factory=list)
    keys: list[BatchKey] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def take_sample(
    pool: PoolReader, *, against: PoolReader | None = None, progress: Progress | None = None
) -> Sample:
    """Read a random choice of batches. against: the pool whose labels this one's are measured by."""
    if against is not None:
        require_comparable(pool, against)
    chosen = choose_batches(pool, against)
    meter = FidelityMeter(label_kind=pool.header.label_kind)
    found = _Gathered()
    shared = 0
    for done, key in enumerate(chosen, 1):
        try:
            views, labels = pool.read_views(key), pool.read_labels(key)
        except PoolCorruptError as error:
            found.unreadable.append(str(error))
            continue
        original = None
        if against is not None and key in against:
            original = matching_labels(against, views)
            meter.add(original, labels)
            shared += 1
        for start in range(0, views.rows, ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            found.parts.append(_measure(pool, views, part, labels, original, len(found.keys)))
        found.keys.append(key)
        if progress is not None:
            progress(done, len(chosen))
    return Sample(
        keys=found.keys,
        whole=len(chosen) == len(pool),
        rows=_joined(found.parts),
        unreadable=tuple(found.unreadable),
        shared=shared,
        fidelity=meter.result() if shared else None,
    )


def require_comparable(pool: PoolReader, other: PoolReader) -> None:
    """Refuse pools whose labels do not mean the same thing."""
    for name in ("classes", "label_kind"):
        if getattr(pool.header, name) != getattr(other.header, name):
            raise InvalidArgumentError(
                f"the pools' labels differ in '{name}'",
                where=other.location,
                expected=getattr(pool.header, name),
                got=getattr(other.header, name),
            )


def choose_batches(pool: PoolReader, against: PoolReader | None = None) -> list[BatchKey]:
    """Return the batches to look at, in key order; of those that both pools have, where there are two."""
    keys = list(pool.keys)
    if against is not None:
        keys = [key for key in keys if key in against]
        if not keys and len(pool):
            raise InvalidArgumentError(
                "the pools have no batch in common",
                where=against.location,
                hint="give the pool that this one was encoded or pruned from",
            )
    limit = min(MOST_ROWS, MOST_VALUES // pool.classes)
    order = keyed_generator(_SEED, len(keys)).permutation(len(keys))
    rows_of = pool.index.rows_of(keys).tolist()
    chosen: list[BatchKey] = []
    rows = 0
    for place in order.tolist():
        if rows >= limit and len(chosen) >= LEAST_BATCHES:
            break
        chosen.append(keys[place])
        rows += rows_of[place]
    return sorted(chosen)


def matching_labels(against: PoolReader, views: ViewBatch) -> LabelArray:
    """Return the other pool's labels of the same views."""
    other = against.read_views(views.key)
    same = np.array_equal(other.images, views.images) and np.array_equal(other.crops, views.crops)
    if not same or not np.array_equal(other.flips, views.flips):
        raise InvalidArgumentError(
            f"{views.key} shows other views there: the labels are not of the same thing",
            where=against.location,
            hint="give the pool that this one was encoded or pruned from",
        )
    return against.read_labels(views.key)


def _measure(
    pool: PoolReader,
    views: ViewBatch,
    part: slice,
    labels: LabelArray,
    original: LabelArray | None,
    batch: int,
) -> Rows:
    """Return the measures of a part of a batch."""
    kind, images = pool.header.label_kind, pool.images
    values = np.asarray(labels[part], np.float64)
    shares = probabilities(values, kind)
    # Sorted by what is stored, which tells apart what softmax rounds to the same.
    order = np.argsort(-values, axis=1, kind="stable")[:, :STRONGEST]
    before = np.full(order.shape, np.nan)
    if original is not None:
        before = np.take_along_axis(probabilities(original[part], kind), order, axis=1)
    shown = views.images[part]
    rows = len(shown)
    mix = views.mix
    partner = np.full(rows, -1, np.int64) if mix is None else views.images[mix.partner[part]].astype(np.int64)
    own_class = images.classes[shown]
    partner_class = own_class if mix is None else images.classes[partner]
    best = order[:, 0]
    agreement = np.where(best == own_class, OWN, np.where(best == partner_class, PARTNER, OTHER))
    pixels = images.heights[shown].astype(np.float64) * images.widths[shown]
    return Rows(
        batch=np.full(rows, batch, np.int64),
        slot=part.start + np.arange(rows),
        image=shown.astype(np.int64),
        partner=partner,
        area=views.crops[part, 2].astype(np.float64) * views.crops[part, 3] / pixels,
        strength=np.full(rows, np.nan if mix is None else mix.strength),
        confidence=np.asarray(np.take_along_axis(shares, order[:, :1], axis=1)[:, 0]),
        entropy=entropy(shares),
        agreement=agreement.astype(np.int64),
        constant=np.asarray(values.max(axis=1) == values.min(axis=1)),
        total=values.sum(axis=1) if kind == "probabilities" else np.ones(rows),
        top=order.astype(np.int64),
        shares=np.take_along_axis(shares, order, axis=1),
        values=np.take_along_axis(values, order, axis=1),
        original=before,
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    names = tuple(Rows.__dataclass_fields__)
    if not parts:
        flat = {name: np.zeros(0, np.int64) for name in names}
        wide = dict.fromkeys(("top", "shares", "values", "original"), np.zeros((0, STRONGEST), np.int64))
        return Rows(**{**flat, **wide})  # type: ignore[arg-type]
    return Rows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
