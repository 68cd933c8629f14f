"""Pools side by side: which came from which, how settings and bytes differ, what codecs kept."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import PurePath
from typing import Any, Literal

from lpld_labels.codecs.fidelity import Fidelity, FidelityMeter
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.manifest import LineageStep
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import BatchKey
from lpld_labels.inspect.page import render_page
from lpld_labels.inspect.pool_charts import accuracy_chart, fidelity_chart, published, size_charts
from lpld_labels.inspect.runs import Run, run_charts
from lpld_labels.inspect.sample import choose_batches, matching_labels, same_views
from lpld_labels.inspect.summary import PoolSummary, step_words, summary_of
from lpld_labels.inspect.text import shortened
from lpld_labels.pool.reader import PoolReader

Kind = Literal["same", "pruned", "encoded", "derived", "siblings", "overlapping", "unrelated"]
_MADE_FROM = ("pruned", "encoded", "derived")
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


@dataclass(frozen=True, kw_only=True)
class ComparedPool:
    """One pool of a comparison.

    fidelity: what it kept of the labels of pool `measured_by`, on batches that both have. runs: students that
    learned from it.
    """

    name: str
    summary: PoolSummary
    settings: dict[str, str]
    measured_by: str | None
    fidelity: Fidelity | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Pools side by side. other_runs: runs that learned from none of the pools."""

    pools: tuple[ComparedPool, ...]
    relations: tuple[Relation, ...]
    other_runs: tuple[Run, ...]

    @property
    def differing(self) -> dict[str, list[str]]:
        """Settings that are not the same in all pools: name -> value of each pool."""
        found = {name: [pool.settings[name] for pool in self.pools] for name in self.pools[0].settings}
        return {name: values for name, values in found.items() if len(set(values)) > 1}

    def as_json(self) -> dict[str, Any]:
        """Return all facts as JSON values."""
        return {
            "pools": [
                {
                    "name": pool.name,
                    "summary": pool.summary.as_json(),
                    "kept": pool.fidelity and {"against": pool.measured_by, **pool.fidelity.as_json()},
                    "students": [{"run": run.name, "top1": run.top1} for run in pool.runs],
                }
                for pool in self.pools
            ],
            "differing": self.differing,
            "relations": [asdict(relation) for relation in self.relations],
            "runs_of_other_pools": [run.name for run in self.other_runs],
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class _Named:
    """An open pool. batches: key -> digest. lineage, digest: of its manifest."""

    name: str
    pool: PoolReader
    batches: dict[BatchKey, bytes]
    lineage: tuple[LineageStep, ...]
    digest: str

    @property
    def ancestors(self) -> set[str]:
        return {step.parent_digest for step in self.lineage if step.parent_digest is not None}

    def steps_from(self, parent: _Named) -> tuple[LineageStep, ...]:
        """Return the steps that lead here from another pool; none if the lineage names no such way."""
        digests = [step.parent_digest for step in self.lineage]
        return self.lineage[digests.index(parent.digest) :] if parent.digest in digests else ()


def compare_pools(
    readers: Sequence[PoolReader], *, runs: Sequence[Run] = (), progress: Progress | None = None
) -> Comparison:
    """Compare open pools. Reads their indexes, and a sample of labels of those that share batches."""
    if len(readers) < 2:
        raise InvalidArgumentError("a comparison needs two pools", expected="at least 2", got=len(readers))
    pools = [
        _Named(
            name=name,
            pool=pool,
            batches={key: pool.index.digest(number) for number, key in enumerate(pool.keys)},
            lineage=pool.header.lineage,
            digest=pool.manifest.content_digest,
        )
        for name, pool in zip(pool_names([os.fspath(r.location) for r in readers]), readers, strict=True)
    ]
    found = [_relation(pools[a], pools[b]) for a in range(len(pools)) for b in range(a + 1, len(pools))]
    compared = []
    for number, one in enumerate(pools):
        summary = summary_of(one.pool.manifest, one.pool.location)
        measured_by, fidelity = _fidelity(one, pools, found)
        compared.append(
            ComparedPool(
                name=one.name,
                summary=summary,
                settings=summary.settings(),
                measured_by=measured_by,
                fidelity=fidelity,
                runs=tuple(run for run in runs if run.pool == one.digest),
            )
        )
        if progress is not None:
            progress(number + 1, len(pools))
    digests = {one.digest for one in pools}
    others = tuple(run for run in runs if run.pool not in digests)
    return Comparison(pools=tuple(compared), relations=tuple(found), other_runs=others)


def pool_names(locations: Sequence[str]) -> list[str]:
    """Return the last parts of paths, as many as tell them apart; a number where nothing does."""
    parts = [PurePath(location.rstrip("/")).parts or (location,) for location in locations]
    for count in range(1, max(len(part) for part in parts) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(locations, 1)]


def parent_of(name: str, relations: Sequence[Relation]) -> Relation | None:
    """Return the relation to the nearest pool that this one came from."""
    made = [r for r in relations if r.kind in _MADE_FROM]
    parents = {r.first for r in made if r.second == name}
    # A parent of a parent is farther away.
    farther = {r.first for r in made if r.second in parents}
    return next((r for r in made if r.second == name and r.first not in farther), None)


def family(names: Sequence[str], relations: Sequence[Relation]) -> list[tuple[int, str, str]]:
    """Return (depth, name, how it was made) of each pool, below the one it came from."""
    nearest = {name: parent_of(name, relations) for name in names}

    def below(parent: str | None, depth: int) -> Iterator[tuple[int, str, str]]:
        for name in names:
            relation = nearest[name]
            if (relation.first if relation else None) == parent:
                yield depth, name, f"{relation.kind} from {relation.first}" if relation else ""
                yield from below(name, depth + 1)

    return list(below(None, 0))


# Relations


def _relation(first: _Named, second: _Named) -> Relation:
    """Return how two pools are related: by lineage if it says so, else by their batches."""
    keys = sorted(first.batches.keys() & second.batches.keys())
    shared, identical = len(keys), sum(first.batches[key] == second.batches[key] for key in keys)
    some = "" if identical == shared else f"{identical:,} of them "
    how = f"{some}with the same labels bit for bit" if identical else "with labels stored otherwise"

    def found(kind: Kind, one: _Named, other: _Named, text: str, *, recorded: bool = True) -> Relation:
        return Relation(
            first=one.name,
            second=other.name,
            kind=kind,
            shared=shared,
            identical=identical,
            recorded=recorded,
            text=text,
        )

    def evidence(parent: _Named, child: _Named) -> str:
        if not shared:
            return "They have no batch in common."
        here, there = len(child.batches), len(parent.batches)
        return f"{shared:,} of its {here:,} batches are among the {there:,} there, {how}."

    names = f"{first.name} and {second.name}"
    if first.digest == second.digest:
        return found("same", first, second, f"{names} hold the same labels, bit for bit.")
    for parent, child in ((first, second), (second, first)):
        steps = child.steps_from(parent)
        if steps:
            operations = {step.operation for step in steps}
            kind: Kind = "pruned" if operations == {"prune"} else "derived"
            kind = "encoded" if operations == {"encode"} else kind
            made = ", then ".join(_step(step) for step in steps)
            text = f"{child.name} came from {parent.name}: {made} (its lineage says so). "
            return found(kind, parent, child, text + evidence(parent, child))
    parent, child = (first, second) if len(first.batches) >= len(second.batches) else (second, first)
    within = bool(shared) and identical == len(child.batches)
    ancestors = first.ancestors & second.ancestors
    if ancestors:
        text = f"{names} both came from pool {max(ancestors)[:12]}."
        text += f" They share {shared:,} batches, {how}." if shared else ""
        text += f" All of {child.name} is inside {parent.name}: prunings nest." if within else ""
        return found("siblings", first, second, text)
    if within:
        text = f"{child.name} looks like a pruning of {parent.name}, though no lineage says so. "
        return found("pruned", parent, child, text + evidence(parent, child), recorded=False)
    if shared and _same_views(first.pool, second.pool, keys):
        what = "the same labels" if identical == shared else "other labels or another codec"
        text = f"{names} share {shared:,} batches of the same views, with {what}; no lineage links them."
        return found("overlapping", first, second, text, recorded=False)
    why = "batches of the same names show other views" if shared else "they have no batch in common"
    return found("unrelated", first, second, f"{names} are unrelated: {why}.", recorded=False)


def _step(step: LineageStep) -> str:
    """Return a step in a few words."""
    known = step_words(step)
    if step.operation == "prune":
        return f"pruned {known['ratio']}x" if "ratio" in known else "pruned to a budget"
    if step.operation in ("encode", "plan"):
        before = known.get("codec_before", "another codec")
        return f"encoded from {before} to {known['codec']}" if "codec" in known else "views changed"
    return step.operation


def _same_views(one: PoolReader, other: PoolReader, shared: Sequence[BatchKey]) -> bool:
    """Return whether some of the shared batches show the same views."""
    order = keyed_generator(_SEED, len(shared)).permutation(len(shared))[:_VIEWS_COMPARED]
    keys = [shared[place] for place in order.tolist()]
    return all(same_views(one.read_views(key), other.read_views(key)) for key in keys)


def _fidelity(
    one: _Named, pools: Sequence[_Named], found: Sequence[Relation]
) -> tuple[str | None, Fidelity | None]:
    """Measure a lossy pool by the one it came from, else by another that shares its views."""
    own = [r for r in found if one.name in (r.first, r.second)]
    origins = [r.first for r in own if r.second == one.name and r.kind in _MADE_FROM]
    others = [
        r.first if r.second == one.name else r.second for r in own if r.kind in ("siblings", "overlapping")
    ]
    by_name = {pool.name: pool for pool in pools}
    for name in (*origins, *others):
        other, header = by_name[name].pool, one.pool.header
        alike = (other.classes, other.header.label_kind) == (header.classes, header.label_kind)
        common = one.batches.keys() & by_name[name].batches.keys()
        if one.pool.codec.lossless or not other.codec.lossless or not alike or not common:
            continue
        meter = FidelityMeter(label_kind=header.label_kind)
        for key in choose_batches(one.pool, other):
            meter.add(matching_labels(other, one.pool.read_views(key)), one.pool.read_labels(key))
        return name, meter.result()
    return None, None


# The page


def comparison_page(comparison: Comparison) -> bytes:
    """Return the comparison as an HTML file."""
    pools = comparison.pools
    names = [shortened(pool.name) for pool in pools]
    pairs = {(r.first, r.second): r for r in comparison.relations}
    pairs |= {(r.second, r.first): r for r in comparison.relations}
    runs = [run for pool in pools for run in pool.runs] + list(comparison.other_runs)
    common = []
    for one in pools:
        cells = [shortened(one.name)]
        for other in pools:
            pair = pairs.get((one.name, other.name))
            both = f"{pair.shared:,} ({pair.identical:,} identical)" if pair else ""
            cells.append(both or f"{one.summary.manifest.counts.batches:,}")
        common.append(cells)
    settings = {
        name: [name, *(shortened(pool.settings[name], 200) for pool in pools)] for name in pools[0].settings
    }
    classes = {pool.summary.manifest.header.classes for pool in pools}
    dataset, others = published(max(classes)) if len(classes) == 1 else ("", [])
    says = "Top-1 of students over the bytes of their pools"
    says += f", beside published ones of ResNet-18 on {dataset}." if others else "."
    students = [(pool.name, pool.summary.total_bytes, pool.runs) for pool in pools]
    accuracy = accuracy_chart("Accuracy against bytes", says, students, others=others)
    sizes = [(pool.name, pool.summary.components, pool.summary.manifest.counts) for pool in pools]
    measured = [(p.name, p.measured_by or "", p.fidelity) for p in pools if p.fidelity is not None]
    return render_page(
        "comparison.html",
        comparison=comparison,
        headers=["", *names],
        family=family([pool.name for pool in pools], comparison.relations),
        common=common,
        differing=[row for name, row in settings.items() if name in comparison.differing],
        same=[row for name, row in settings.items() if name not in comparison.differing],
        size=size_charts(sizes, "All files of each pool."),
        kept=[fidelity_chart(measured)] if measured else [],
        accuracy=[accuracy] if accuracy.marks else [],
        curves=run_charts(runs),
    )
