"""Compare pools: which settings and bytes differ, which pool was made from which, and fidelity."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import PurePath
from typing import Any

import numpy as np

from lpld_labels.codecs.fidelity import Fidelity, FidelityMeter
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.records import ViewBatch
from lpld_labels.inspect.sample import choose_batches
from lpld_labels.inspect.summary import PoolSummary, step_words
from lpld_labels.pool.reader import PoolReader
from lpld_labels.results import Result


@dataclass(frozen=True, kw_only=True)
class Relation:
    """How two pools are related. first, second: names of the pools. text: the relation in words.

    steps: the operations that made `second` from `first` according to its lineage, or ().
    shared: number of keys that both pools have. identical: number of shared keys with equal digests.
    """

    first: str
    second: str
    steps: tuple[str, ...]
    shared: int
    identical: int
    text: str


@dataclass(frozen=True, kw_only=True)
class ComparedPool:
    """One pool of a comparison. fidelity: measured against the labels of pool `measured_by`."""

    name: str
    summary: PoolSummary
    measured_by: str | None
    fidelity: Fidelity | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison(Result):
    """Pools side by side."""

    pools: tuple[ComparedPool, ...]
    relations: tuple[Relation, ...]

    @property
    def settings(self) -> dict[str, list[str]]:
        found = [pool.summary.settings() for pool in self.pools]
        return {name: [settings[name] for settings in found] for name in found[0]}

    @property
    def differing(self) -> dict[str, list[str]]:
        return {name: values for name, values in self.settings.items() if len(set(values)) > 1}

    def as_json(self) -> dict[str, Any]:
        return {
            "pools": [
                {
                    "name": pool.name,
                    "summary": pool.summary.as_json(),
                    "kept": pool.fidelity and {"against": pool.measured_by, **pool.fidelity.as_json()},
                }
                for pool in self.pools
            ],
            "differing": self.differing,
            "relations": [asdict(relation) for relation in self.relations],
        }


def compare_pools(readers: Sequence[PoolReader], *, progress: Progress | None = None) -> Comparison:
    """Compare open pools. Reads their indexes, and a sample of labels from pools that share batches."""
    pools = dict(zip(pool_names([os.fspath(r.location) for r in readers]), readers, strict=True))
    compared = []
    for name, pool in pools.items():
        summary = PoolSummary(location=pool.location, manifest=pool.manifest)
        measured_by, fidelity = _fidelity(pool, pools)
        compared.append(ComparedPool(name=name, summary=summary, measured_by=measured_by, fidelity=fidelity))
        if progress is not None:
            progress(len(compared), len(pools))
    return Comparison(pools=tuple(compared), relations=tuple(_relations(pools)))


def pool_names(locations: Sequence[str]) -> list[str]:
    """Return a name for each path: the shortest endings that all differ, or else the paths with numbers."""
    parts = [PurePath(location.rstrip("/")).parts or (location,) for location in locations]
    for count in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(locations, 1)]


def _relations(pools: Mapping[str, PoolReader]) -> Iterator[Relation]:
    """Yield the relation of each pair of pools; `first` is the parent if the other was made from it."""
    batches = {
        name: dict(zip(pool.keys, map(pool.index.digest, range(len(pool))), strict=True))
        for name, pool in pools.items()
    }
    for pair in combinations(pools, 2):
        made_from_second = _steps_from(pools[pair[0]], pools[pair[1]])
        first, second = reversed(pair) if made_from_second else pair
        steps = _steps_from(pools[second], pools[first])
        shared = batches[first].keys() & batches[second].keys()
        identical = sum(batches[first][key] == batches[second][key] for key in shared)
        text = f"{first} ({len(pools[first]):,} batches) and {second} ({len(pools[second]):,}) "
        if pools[first].manifest.content_digest == pools[second].manifest.content_digest:
            text = f"{first} and {second} hold the same labels, bit for bit."
        elif shared:
            text += f"share {len(shared):,}, {identical:,} of them identical bit for bit."
        else:
            text += "have no batch in common."
        if steps:
            made = ", then ".join(map(_step, steps))
            text = f"{second} came from {first}: {made} (its lineage says so). {text}"
        yield Relation(
            first=first,
            second=second,
            steps=tuple(step.operation for step in steps),
            shared=len(shared),
            identical=identical,
            text=text,
        )


def _steps_from(pool: PoolReader, parent: PoolReader) -> tuple[LineageStep, ...]:
    """Return the lineage steps that made `pool` from `parent`; () if `parent` is not in the lineage."""
    digests = [step.parent_digest for step in pool.header.lineage]
    digest = parent.manifest.content_digest
    return pool.header.lineage[digests.index(digest) :] if digest in digests else ()


def _step(step: LineageStep) -> str:
    known = step_words(step)
    if step.operation == "prune":
        return f"pruned {known['ratio']}x" if "ratio" in known else "pruned to a budget"
    if step.operation in ("encode", "plan"):
        before = known.get("codec_before", "a different codec")
        return f"encoded from {before} to {known['codec']}" if "codec" in known else "views changed"
    return step.operation


def _fidelity(pool: PoolReader, pools: Mapping[str, PoolReader]) -> tuple[str | None, Fidelity | None]:
    """Find a lossless pool with the same views, preferably an ancestor; return its name and the fidelity."""
    if pool.codec.lossless:
        return None, None
    header = pool.header
    for name, other in sorted(pools.items(), key=lambda item: not _steps_from(pool, item[1])):
        alike = (other.classes, other.header.label_kind) == (header.classes, header.label_kind)
        if not other.codec.lossless or not alike:
            continue
        keys = choose_batches(pool, [key for key in pool.keys if key in other])
        if keys and all(_same_views(pool.read_views(key), other.read_views(key)) for key in keys):
            meter = FidelityMeter(label_kind=header.label_kind)
            for key in keys:
                meter.add(other.read_labels(key), pool.read_labels(key))
            return name, meter.result()
    return None, None


def _same_views(one: ViewBatch, other: ViewBatch) -> bool:
    names = ("images", "crops", "flips")
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)
