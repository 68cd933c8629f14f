"""Pools side by side, as facts: settings, bytes, fidelity, relations, students."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from lpld_labels.codecs.fidelity import Fidelity, FidelityMeter
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.inspect.comparison.relations import NamedPool, Relation, relations
from lpld_labels.inspect.report.runs import Run
from lpld_labels.inspect.report.sample import choose_batches, matching_labels
from lpld_labels.inspect.settings import settings_of
from lpld_labels.inspect.summary import PoolSummary, summarise
from lpld_labels.pool.reader import PoolReader


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a pool kept of another one's labels, measured on batches that both have."""

    against: str
    fidelity: Fidelity


@dataclass(frozen=True, kw_only=True)
class PoolColumn:
    """One pool of a comparison. runs: students that learned from it."""

    name: str
    summary: PoolSummary
    settings: dict[str, str]
    kept: Kept | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Pools side by side. strangers: runs of none of the pools."""

    pools: tuple[PoolColumn, ...]
    relations: tuple[Relation, ...]
    strangers: tuple[Run, ...]

    @property
    def differing(self) -> dict[str, list[str]]:
        """Settings that are not the same in all pools: name -> value of each pool."""
        found = {name: [pool.settings[name] for pool in self.pools] for name in self.pools[0].settings}
        return {name: values for name, values in found.items() if len(set(values)) > 1}

    def as_json(self) -> dict[str, Any]:
        """Return all facts as JSON values."""
        return {
            "pools": [_pool_json(pool) for pool in self.pools],
            "differing": self.differing,
            "relations": [relation.as_json() for relation in self.relations],
            "runs_of_other_pools": [run.name for run in self.strangers],
        }


def compare_pools(
    readers: Sequence[PoolReader], *, runs: Sequence[Run] = (), progress: Progress | None = None
) -> Comparison:
    """Compare open pools. Reads footers, indexes, and a sample of labels of those that share batches."""
    if len(readers) < 2:
        raise InvalidArgumentError("a comparison needs two pools", expected="at least 2", got=len(readers))
    names = pool_names([os.fspath(reader.location) for reader in readers])
    pools = [NamedPool(name=name, pool=reader) for name, reader in zip(names, readers, strict=True)]
    found = relations(pools)
    columns = []
    for number, one in enumerate(pools):
        summary = summarise(one.pool.location)
        columns.append(
            PoolColumn(
                name=one.name,
                summary=summary,
                settings=settings_of(summary),
                kept=_kept(one, pools, found),
                runs=tuple(run for run in runs if run.pool == one.digest),
            )
        )
        if progress is not None:
            progress(number + 1, len(pools))
    digests = {one.digest for one in pools}
    return Comparison(
        pools=tuple(columns),
        relations=tuple(found),
        strangers=tuple(run for run in runs if run.pool not in digests),
    )


def pool_names(locations: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell them apart; a number where nothing does."""
    parts = [PurePath(location.rstrip("/")).parts or (location,) for location in locations]
    for count in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(locations, 1)]


def _kept(one: NamedPool, pools: Sequence[NamedPool], found: Sequence[Relation]) -> Kept | None:
    """Measure a pool by the one it came from, else by another that shares its views; None without any."""
    if one.pool.codec.lossless:
        return None
    origins = [r.first for r in found if r.second == one.name and r.kind in ("encoded", "derived", "pruned")]
    others = [
        r.first if r.second == one.name else r.second
        for r in found
        if one.name in (r.first, r.second) and r.kind in ("siblings", "overlapping")
    ]
    by_name = {pool.name: pool for pool in pools}
    for name in (*origins, *others):
        other = by_name[name]
        if other.pool.codec.lossless and _meaning(one.pool) == _meaning(other.pool):
            measured = _measured(one, other)
            if measured is not None:
                return measured
    return None


def _meaning(pool: PoolReader) -> tuple[int, str]:
    return pool.classes, pool.header.label_kind


def _measured(one: NamedPool, other: NamedPool) -> Kept | None:
    if not any(key in other.pool for key in one.pool.keys):
        return None
    meter = FidelityMeter(label_kind=one.pool.header.label_kind)
    for key in choose_batches(one.pool, other.pool):
        meter.add(matching_labels(other.pool, one.pool.read_views(key)), one.pool.read_labels(key))
    return Kept(against=other.name, fidelity=meter.result())


def _pool_json(pool: PoolColumn) -> dict[str, Any]:
    kept = pool.kept
    return {
        "name": pool.name,
        "summary": pool.summary.as_json(),
        "kept": None if kept is None else {"against": kept.against, **kept.fidelity.as_json()},
        "students": [{"run": run.name, "top1": run.top1} for run in pool.runs],
    }
