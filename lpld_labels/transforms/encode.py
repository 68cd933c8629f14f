"""Making a pool with another codec, or with its views kept otherwise.

Views are copied, labels are decoded and encoded again, batch by batch; where only views change, labels are
copied too.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from lpld_labels.codecs import Codec
from lpld_labels.codecs.fidelity import Fidelity
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Executor, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.format.schema import Views
from lpld_labels.pool.packing import carried
from lpld_labels.pool.plan import BatchSource, PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.views import require_drawn
from lpld_labels.transforms import lineage
from lpld_labels.transforms.batch_sources import CopiedBatches, EncodedBatches, copied_shards, encoded_shards
from lpld_labels.transforms.pipeline import finished_before, pool_path, require_output, run_plan
from lpld_labels.transforms.prune import PrunePlan
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.sample import LabelSample
from lpld_labels.transforms.settings import DEFAULT_TEMPERATURE, EncodeSettings

BUDGET_ROUNDS = 6


@dataclass(frozen=True, kw_only=True)
class EncodeResult:
    """What came of it.

    before, after: bytes of the source (the whole pool) and the new pool. fidelity: measured on rows the
    codec was not fitted to; None where labels were copied. better: a simpler codec that would serve as well
    in no more bytes, or None.
    """

    manifest: Manifest
    codec: Codec
    before: int
    after: int
    fidelity: Fidelity | None
    better: str | None


@writes_pools
def encode_pool(
    pool: PoolReader,
    out: str | os.PathLike[str],
    settings: EncodeSettings,
    *,
    pruned: PrunePlan | None = None,
    executor: Executor = ONE_PROCESS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncodeResult:
    """Write the pool to `out` with the codec and views that are asked for.

    pruned: batches of the pool to write; all by default. executor: who does the work.
    overwrite: replace another pool that is there. progress: called with (done, total) batches.
    """
    if settings.codec is not None:
        refuse_lossy(pool, accept=settings.from_lossy)
    require_drawable(pool, settings.views)
    batches = BatchesToWrite(pool=pool, pruned=pruned, views=settings.views)
    step = lineage.step("encode", batches.digest, settings, codec_before=pool.codec.name)
    require_output(out, pool.location, overwrite=overwrite, step=step)
    found = finished_before(out, step)
    if found is not None:
        return _found(pool, out, found)
    trial, better = None, None
    if settings.codec is not None:
        sample = LabelSample(pool, settings)
        codec = _fitted(sample, settings, batches)
        # Judged first: a codec that cannot hold these labels fails before anything is written.
        trial = sample.judged(codec)
        batches = replace(batches, codec=codec, bytes_per_row=trial.payload_per_row)
        better = sample.simpler(
            codec,
            temperature=settings.temperature or DEFAULT_TEMPERATURE,
            batches=batches.count,
            rows=batches.rows,
        )
        results = {"fidelity": trial.fidelity.as_json(), "better": better}
        step = replace(step, parameters=step.parameters | results)
    steps = (step,) if pruned is None else (pruned.step, step)
    plan = batches.plan(out, steps, budget=settings.budget)
    manifest = run_plan(plan, executor=executor, overwrite=overwrite, progress=progress)
    fidelity = None if trial is None else trial.fidelity
    return _result(pool, manifest, plan.codec, fidelity, better)


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchesToWrite:
    """Batches of a pool that another pool gets.

    pruned: which; None for all. codec: of the new pool; None to copy labels as they are stored.
    bytes_per_row: of labels in that codec, about. views: whether it keeps its views; None to do as this one.
    """

    pool: PoolReader
    pruned: PrunePlan | None
    views: Views | None
    codec: Codec | None = None
    bytes_per_row: float = 0.0

    @property
    def count(self) -> int:
        return len(self.pool) if self.pruned is None else self.pruned.count

    @property
    def digest(self) -> str:
        """Content digest of a pool of these batches as they are stored."""
        return self.pool.manifest.content_digest if self.pruned is None else self.pruned.content_digest

    @property
    def rows(self) -> int:
        return self.pool.manifest.counts.rows if self.pruned is None else self.pruned.rows

    @property
    def incomplete(self) -> int:
        """How many of the batches have less rows than others."""
        full = self.pool.header.batch_size
        rows = self.pool.index.rows if self.pruned is None else self.pool.index.rows[self.pruned.kept]
        return int((rows < full).sum())

    def plan(
        self, out: str | os.PathLike[str], steps: tuple[LineageStep, ...], *, budget: int | None
    ) -> PoolPlan:
        """Return the plan of a pool of these batches. steps: of lineage, that lead to it."""
        pool, codec = self.pool, self.codec
        keys = pool.keys if self.pruned is None else self.pruned.keys
        source: BatchSource = CopiedBatches(pool)
        shards = copied_shards(pool, keys)
        if codec is not None:
            source = EncodedBatches(pool, codec)
            shards = encoded_shards(pool, keys, self.bytes_per_row)
        return PoolPlan(
            out=pool_path(out),
            header=replace(pool.header, lineage=(*pool.header.lineage, *steps)),
            images=pool.images,
            codec=codec or pool.codec,
            views=self.views or pool.manifest.views,
            source=source,
            shards=shards,
            settings={"pool": pool.manifest.content_digest},
            packed=carried(pool),
            content_digest=self.digest if codec is None else None,
            most_bytes=budget,
        )


def _found(pool: PoolReader, out: str | os.PathLike[str], manifest: Manifest) -> EncodeResult:
    """Return what came of an encoding that was finished before."""
    # Of a pool at an address, no more is here than opening takes.
    with PoolReader(out, check_sizes=False) as encoded:
        codec = encoded.codec
    known = manifest.header.lineage[-1].parameters
    fidelity = None if known.get("fidelity") is None else Fidelity.from_json(known["fidelity"])
    return _result(pool, manifest, codec, fidelity, known.get("better"))


def _result(
    pool: PoolReader, manifest: Manifest, codec: Codec, fidelity: Fidelity | None, better: str | None
) -> EncodeResult:
    return EncodeResult(
        manifest=manifest,
        codec=codec,
        before=pool_bytes(pool.manifest),
        after=pool_bytes(manifest),
        fidelity=fidelity,
        better=better,
    )


def refuse_lossy(pool: PoolReader, *, accept: bool) -> None:
    """Refuse labels that have been through a lossy codec: what it lost would be lost without a trace."""
    if not pool.codec.lossless and not accept:
        raise InvalidArgumentError(
            f"labels of this pool have already lost information to codec '{pool.codec.name}'",
            where=pool.location,
            expected="a pool in codec f16 or f32",
            hint="encode the original pool, or insist (--from-lossy): fidelity is then that to these labels",
        )


def require_drawable(pool: PoolReader, views: Views | None) -> None:
    """Refuse at once, before anything is written, to leave out views that were not drawn from the seed."""
    if views == "drawn" and pool.manifest.views == "stored" and len(pool):
        require_drawn(pool.views_at(0), pool.header, pool.images)


def _fitted(sample: LabelSample, settings: EncodeSettings, batches: BatchesToWrite) -> Codec:
    """Return the codec that is asked for, fitted if its kind is."""
    name, temperature, budget = settings.codec or "", settings.temperature, settings.budget
    if budget is None:
        return sample.codec(name, rows=batches.rows, fidelity=settings.fidelity, temperature=temperature)
    return _within_budget(sample, settings, batches, budget)


def _within_budget(
    sample: LabelSample, settings: EncodeSettings, batches: BatchesToWrite, budget: int
) -> Codec:
    """Return the codec that keeps most in a pool of so many bytes: estimate, weigh, correct."""
    fitter = sample.fitter.for_rows(batches.rows)

    def weighed(codec: Codec) -> int:
        return sample.weigh(codec).total(batches.count, batches.rows, incomplete=batches.incomplete)

    codec = fitter.smallest()
    size = weighed(codec)
    if size > budget:
        raise InvalidArgumentError(
            f"budget is too small for these labels in codec '{codec.name}'",
            expected=f"at least {size} bytes",
            got=f"{budget} bytes",
            hint="prune the pool first, or let `plan` find a ratio and a codec that fit",
        )
    for number in range(BUDGET_ROUNDS):
        # Everything but labels and tables stays nearly the same from one codec to the next.
        others = size - batches.rows * fitter.bytes_per_row(codec)
        room = (budget - others) / batches.rows
        codec = fitter.for_bytes_per_row(room, temperature=settings.temperature or DEFAULT_TEMPERATURE)
        size = weighed(codec)
        if number and size <= budget:
            return codec
    raise InvalidArgumentError(
        "no setting of the codec found that meets the budget",
        expected=f"at most {budget} bytes",
        got=f"{size} bytes",
    )
