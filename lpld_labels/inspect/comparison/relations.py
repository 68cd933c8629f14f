"""How pools came from each other: by their lineage, their batches' names and their batches' digests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey
from lpld_labels.pool.reader import PoolReader

Kind = Literal["same", "pruned", "encoded", "derived", "siblings", "overlapping", "unrelated"]
_VIEWS_COMPARED = 4
_SEED = 20


@dataclass(frozen=True, kw_only=True)
class Relation:
    """What pool `second` is to pool `first` (names). For pruned, encoded, derived: second came from first.

    shared: batches that both have. identical: those of them with the same digest, that is the same views and
    the same stored labels. recorded: the lineage says so. text: all this in a sentence.
    """

    first: str
    second: str
    kind: Kind
    shared: int
    identical: int
    recorded: bool
    text: str

    def as_json(self) -> dict[str, Any]:
        """Return the relation as JSON values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, eq=False)
class NamedPool:
    """An open pool under the name that tells it from the others."""

    name: str
    pool: PoolReader

    @property
    def digest(self) -> str:
        return self.pool.manifest.content_digest

    @property
    def lineage(self) -> tuple[LineageStep, ...]:
        return self.pool.header.lineage


def relations(pools: Sequence[NamedPool]) -> list[Relation]:
    """Return the relation of every two pools."""
    batches = [_batches(one.pool) for one in pools]
    return [
        _relation(pools[a], pools[b], batches[a], batches[b])
        for a in range(len(pools))
        for b in range(a + 1, len(pools))
    ]


def _batches(pool: PoolReader) -> dict[BatchKey, bytes]:
    return {key: pool.index.digest(number) for number, key in enumerate(pool.keys)}


def _relation(
    first: NamedPool, second: NamedPool, one: dict[BatchKey, bytes], other: dict[BatchKey, bytes]
) -> Relation:
    shared = sorted(one.keys() & other.keys())
    identical = sum(one[key] == other[key] for key in shared)
    if first.digest == second.digest:
        text = f"{first.name} and {second.name} hold the same labels, bit for bit."
        return _of(first, second, "same", shared, identical, True, text)
    for parent, child in ((first, second), (second, first)):
        steps = steps_from(parent, child)
        if steps is not None:
            return _recorded(parent, child, steps, shared, identical)
    return _found(first, second, one, other, shared, identical)


def steps_from(parent: NamedPool, child: NamedPool) -> tuple[LineageStep, ...] | None:
    """Return the steps that lead from one pool to another, or None where the lineage names no such way."""
    for number, step in enumerate(child.lineage):
        if step.parent_digest == parent.digest:
            return child.lineage[number:]
    return None


def _recorded(
    parent: NamedPool,
    child: NamedPool,
    steps: tuple[LineageStep, ...],
    shared: list[BatchKey],
    identical: int,
) -> Relation:
    operations = {step.operation for step in steps}
    kind: Kind = "derived"
    if operations == {"prune"}:
        kind = "pruned"
    elif operations == {"encode"}:
        kind = "encoded"
    how = ", then ".join(_words(step) for step in steps)
    text = f"{child.name} came from {parent.name}: {how} (its lineage says so)."
    text += " " + _evidence(child, parent, shared, identical)
    return _of(parent, child, kind, shared, identical, True, text)


def _words(step: LineageStep) -> str:
    """Return a step in a few words."""
    known = step.parameters
    if step.operation == "prune":
        if known.get("ratio") is not None:
            return f"pruned {known['ratio']:g}x" if _is_number(known["ratio"]) else "pruned"
        return "pruned to a budget"
    if step.operation == "encode":
        return f"encoded from {known.get('from', 'another codec')} to {known.get('codec', 'another')}"
    return step.operation


def _evidence(child: NamedPool, parent: NamedPool, shared: list[BatchKey], identical: int) -> str:
    if not shared:
        return "They have no batch in common."
    here, there, how = len(child.pool), len(parent.pool), _sameness(shared, identical)
    return f"{len(shared):,} of its {here:,} batches are among the {there:,} there, {how}."


def _sameness(shared: list[BatchKey], identical: int) -> str:
    if not identical:
        return "with labels stored otherwise"
    some = "" if identical == len(shared) else f"{identical:,} of them "
    return f"{some}with the same labels bit for bit"


def _found(
    first: NamedPool,
    second: NamedPool,
    one: dict[BatchKey, bytes],
    other: dict[BatchKey, bytes],
    shared: list[BatchKey],
    identical: int,
) -> Relation:
    """Return what the batches alone tell, where no lineage links the two."""
    parent, child = (first, second) if len(one) >= len(other) else (second, first)
    within = bool(shared) and identical == len(child.pool)
    ancestors = _ancestors(first) & _ancestors(second)
    if ancestors:
        text = f"{first.name} and {second.name} both came from pool {max(ancestors)[:12]}."
        text += f" They share {len(shared):,} batches, {_sameness(shared, identical)}." if shared else ""
        text += f" All of {child.name} is inside {parent.name}: prunings nest." if within else ""
        return _of(first, second, "siblings", shared, identical, True, text)
    if within:
        text = f"{child.name} looks like a pruning of {parent.name}, though no lineage says so. "
        text += _evidence(child, parent, shared, identical)
        return _of(parent, child, "pruned", shared, identical, False, text)
    views = _same_views(first.pool, second.pool, shared)
    if shared and views:
        what = "the same labels" if identical == len(shared) else "other labels or another codec"
        text = (
            f"{first.name} and {second.name} share {len(shared):,} batches of the same views, with {what}; "
            "no lineage links them."
        )
        return _of(first, second, "overlapping", shared, identical, False, text)
    why = "batches of the same names show other views" if shared else "they have no batch in common"
    text = f"{first.name} and {second.name} have nothing to do with each other: {why}."
    return _of(first, second, "unrelated", shared, identical, False, text)


def _ancestors(one: NamedPool) -> set[str]:
    return {step.parent_digest for step in one.lineage if step.parent_digest is not None}


def _same_views(one: PoolReader, other: PoolReader, shared: list[BatchKey]) -> bool:
    """Return whether some of the shared batches show the same crops of the same images."""
    if not shared:
        return False
    order = keyed_generator(_SEED, len(shared)).permutation(len(shared))[:_VIEWS_COMPARED]
    for place in order.tolist():
        a, b = one.read_views(shared[place]), other.read_views(shared[place])
        if not (np.array_equal(a.images, b.images) and np.array_equal(a.crops, b.crops)):
            return False
        if not np.array_equal(a.flips, b.flips):
            return False
    return True


def _of(
    first: NamedPool,
    second: NamedPool,
    kind: Kind,
    shared: list[BatchKey],
    identical: int,
    recorded: bool,
    text: str,
) -> Relation:
    return Relation(
        first=first.name,
        second=second.name,
        kind=kind,
        shared=len(shared),
        identical=identical,
        recorded=recorded,
        text=text,
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))
