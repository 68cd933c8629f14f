"""Plan a byte budget: how far to prune and which codec to use, so that everything fits.

Pruning decides how many views stay; a codec decides the bytes per view. For each codec setting, the plan has
a row with the largest number of batches that fits the budget, and the measured fidelity. Of the rows that
keep enough of each label, it recommends the one with the most views. Applying a row prunes and encodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lpld_labels.codecs import Codec, codec_kind, planned_codecs
from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity, Trial
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.exec.job import Executor, Progress
from lpld_labels.exec.local import ONE_PROCESS
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.io.addresses import Location
from lpld_labels.pool.plan import PoolPlan
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import SizeModel, most_within, pool_bytes
from lpld_labels.transforms.batch_sources import transform_plan
from lpld_labels.transforms.budget import Scales
from lpld_labels.transforms.encode import LabelSample, refuse_lossy, require_drawable
from lpld_labels.transforms.pipeline import finished_before, lineage_step, require_output, run_plan
from lpld_labels.transforms.prune import PrunePlan, plan_prune, ratio_that_keeps, too_small
from lpld_labels.transforms.remote_output import writes_pools
from lpld_labels.transforms.settings import DEFAULT_MIN_FIDELITY, PlanSettings, PruneSettings

FIDELITIES = (0.99, 0.97, 0.95, 0.90, 0.80)
MEASURED_SLACK = 0.001  # A codec fitted to 0.97 may measure 0.9695 on other rows.
ROUNDS = 2  # Fits per codec: the basis depends on the number of rows that fit, and vice versa.
_Fitting = tuple[PrunePlan | None, int]  # (plan, or None to keep all batches; bytes of the pool).


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanRow:
    """One way to fit the budget. reason: why this row is recommended; empty if it is not.

    codec: None to copy the labels. asked: fidelity that the codec was fitted to, or None.
    pruned: None to keep all batches, even incomplete batches. bytes: upper limit on the pool's size.
    """

    name: str
    asked: float | None
    codec: Codec | None
    pruned: PrunePlan | None
    batches: int
    rows: int
    bytes: int
    views_per_image: float
    trial: Trial
    reason: str = ""

    @property
    def recommended(self) -> bool:
        return bool(self.reason)

    @property
    def fidelity(self) -> Fidelity:
        return self.trial.fidelity

    @property
    def ratio(self) -> float:
        if self.pruned is None:
            return 1.0
        return ratio_that_keeps(self.batches, len(self.pruned.candidates))

    @property
    def title(self) -> str:
        return self.name if self.asked is None else f"{self.name} {self.asked:g}"

    def as_json(self) -> dict[str, Any]:
        # The fidelity comes first: its "rows" are overwritten below.
        return {
            **self.fidelity.as_json(),
            "codec": self.name,
            "fidelity_asked": self.asked,
            "ratio": self.ratio,
            "whole": self.pruned is None,
            "batches": self.batches,
            "rows": self.rows,
            "bytes": self.bytes,
            "bytes_per_row": round(self.bytes / self.rows, 2),
            "views_per_image": round(self.views_per_image, 3),
            "recommended": self.recommended,
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class BudgetPlan:
    """Ways to fit a budget, most views first. minimum: share of information that a good way keeps."""

    settings: PlanSettings
    minimum: float
    rows: tuple[PlanRow, ...]

    @property
    def recommended(self) -> PlanRow:
        return next(row for row in self.rows if row.recommended)


def plan_budget(pool: PoolReader, settings: PlanSettings, *, progress: Progress | None = None) -> BudgetPlan:
    """Find the largest number of batches that fits the budget, for each codec setting.

    A fitted codec (``klt``) gives one row for each of FIDELITIES and one for the minimum fidelity.
    """
    refuse_lossy(pool, accept=settings.from_lossy)
    require_drawable(pool, settings.views)
    sample = LabelSample(pool, settings)
    minimum = settings.min_fidelity or DEFAULT_MIN_FIDELITY
    names = settings.codecs or (*planned_codecs(fitted=False), *planned_codecs(fitted=True))
    tried = [(name, fidelity) for name in names for fidelity in _fidelities(name, minimum)]
    planner = _Planner(sample, settings)
    rows: list[PlanRow] = []
    for done, (name, fidelity) in enumerate(tried, 1):
        rows += planner.rows(name, fidelity)
        if progress is not None:
            progress(done, len(tried))
    if not rows:
        raise too_small(settings.budget, planner.smallest)
    temperature = settings.temperature
    rows.sort(key=lambda row: (-row.views_per_image, -row.fidelity.kept[temperature], row.bytes))
    good = [row for row in rows if row.fidelity.kept[temperature] >= minimum - MEASURED_SLACK]
    chosen = good[0] if good else max(rows, key=lambda row: row.fidelity.kept[temperature])
    rows[rows.index(chosen)] = replace(chosen, reason=_reason(chosen, good, minimum, temperature))
    return BudgetPlan(settings=settings, minimum=minimum, rows=tuple(rows))


@writes_pools
def apply_plan(
    pool: PoolReader,
    out: Location,
    plan: BudgetPlan,
    *,
    row: PlanRow | None = None,
    executor: Executor = ONE_PROCESS,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Write the pool of `row`, or of the recommended row. progress: called with (done, total) batches."""
    pool_plan = _pool_plan(pool, plan.settings, row or plan.recommended, out)
    step = pool_plan.header.lineage[-1]
    require_output(out, pool.location, overwrite=overwrite, step=step)
    found = finished_before(out, step)
    if found is not None:
        return found
    return run_plan(pool_plan, executor=executor, overwrite=overwrite, progress=progress)


def _pool_plan(pool: PoolReader, settings: PlanSettings, row: PlanRow, out: Location) -> PoolPlan:
    results = {
        "codec_before": pool.codec.name,
        "codec": row.name,
        "fidelity_asked": row.asked,
        "ratio": row.ratio,
        "kept_batches": row.batches,
        "random_seed": None if row.pruned is None else row.pruned.seed,
        "fidelity": row.fidelity.as_json(),
    }
    step = applied_step(pool, settings)
    return transform_plan(
        pool,
        out,
        replace(step, parameters=step.parameters | results),
        keys=None if row.pruned is None else row.pruned.keys,
        codec=row.codec,
        bytes_per_row=row.trial.payload_per_row,
        views=settings.views,
        # The copy of a pool that fits may exceed the budget by its new lineage step.
        most_bytes=None if row.pruned is None and row.codec is None else settings.budget,
    )


def applied_step(pool: PoolReader, settings: PlanSettings) -> LineageStep:
    """Return the lineage step of an applied plan, without its results."""
    return lineage_step("plan", pool.manifest.content_digest, settings)


def image_bytes(folder: str | Path, images: ImageTable) -> int:
    """Return the total bytes of a pool's images in a folder."""
    total = 0
    for path in images.paths:
        file = Path(folder) / path
        try:
            total += file.stat().st_size
        except OSError:
            raise ImageMismatchError(
                "image is missing", where=file, hint="give the folder that was labelled (--images)"
            ) from None
    return total


def _fidelities(name: str, minimum: float) -> list[float | None]:
    """Return the fidelities to fit a codec to, one plan row each; [None] if the codec is not fitted."""
    return [*sorted({*FIDELITIES, minimum}, reverse=True)] if codec_kind(name).fitted else [None]


class _Planner:
    """Makes the rows of a plan from one sample. smallest: bytes of the smallest pool if none fits."""

    def __init__(self, sample: LabelSample, settings: PlanSettings) -> None:
        self._sample, self._pool, self._settings = sample, sample.pool, settings
        self._temperatures = tuple(sorted({*TEMPERATURES, settings.temperature}))
        self._everything = plan_prune(self._pool, PruneSettings(ratio=1))
        self.smallest = 0

    def rows(self, name: str, fidelity: float | None) -> list[PlanRow]:
        """Return [row] for a codec setting; [] if no batch fits or the fidelity is out of reach."""
        pool, views = self._pool, self._settings.views
        codec: Codec | None = None
        if name == pool.codec.spec and views in (None, pool.manifest.views):
            size, extra = pool_bytes(pool.manifest), self._sample.step_bytes
            fitting: _Fitting | None = (None, size + extra)
            if size > self._settings.budget:
                fitting = self._fit(size + extra, lambda n: self._everything.resized(n).most_bytes + extra)
        else:
            codec, fitting = self._encoded(name, fidelity)
            if codec is None:
                return []
        trial = self._sample.judged(codec or pool.codec, temperatures=self._temperatures)

        def row(pruned: PrunePlan | None, size: int = 0) -> PlanRow:
            rows = pool.manifest.counts.rows if pruned is None else pruned.rows
            return PlanRow(
                name=name,
                asked=fidelity,
                codec=codec,
                pruned=pruned,
                batches=len(pool) if pruned is None else pruned.count,
                rows=rows,
                bytes=size,
                views_per_image=rows / max(len(pool.images), 1),
                trial=trial,
            )

        fitting = self._weighed(row, fitting)
        return [] if fitting is None else [row(*fitting)]

    def _weighed(
        self, row: Callable[[PrunePlan | None], PlanRow], estimate: _Fitting | None
    ) -> _Fitting | None:
        """Return what fits the budget: measured if the pools are small, else the estimate."""
        pool, settings, most, scales = self._pool, self._settings, self._everything.count, Scales(self._pool)
        if estimate is not None and estimate[0] is None and row(None).codec is None:
            return estimate  # A copy of the pool, whose size is known.
        kept = 1 if estimate is None else most if estimate[0] is None else estimate[0].count
        if not scales.suit(settings.budget, kept):
            return estimate

        def weight(count: int | None) -> int:
            pruned = None if count is None else self._everything.resized(count)
            return scales.weigh(_pool_plan(pool, settings, row(pruned), Path()))

        count, size = most_within(settings.budget, most, weight, start=kept)
        if count == most and (everything := weight(None)) <= settings.budget:
            return None, everything
        return self._fitting(count, size)

    def _encoded(self, name: str, fidelity: float | None) -> tuple[Codec | None, _Fitting | None]:
        """Return the codec and what fits the budget; (None, None) if the fidelity is out of reach."""
        counts, full = self._pool.manifest.counts, self._pool.header.batch_size
        rows = counts.rows
        for _ in range(1 if fidelity is None else ROUNDS):
            try:
                codec = self._sample.codec(
                    name, rows=rows, fidelity=fidelity, temperature=self._settings.temperature
                )
            except InvalidArgumentError:
                if fidelity is None:
                    raise
                return None, None  # This fidelity is out of reach for this pool.
            size = self._sample.weigh(codec)

            def weight(count: int, size: SizeModel = size) -> int:
                pruned = self._everything.resized(count)
                return size.total(count, pruned.rows, incomplete=count if pruned.rows < count * full else 0)

            everything = size.total(counts.batches, counts.rows, incomplete=counts.incomplete_batches)
            fitting = self._fit(everything, weight)
            if fitting is None or fitting[0] is None:
                break
            rows = fitting[0].rows
        return codec, fitting

    def _fit(self, everything: int, weight: Callable[[int], int]) -> _Fitting | None:
        """Return what fits the budget. everything: bytes of all batches. weight: bytes of n batches."""
        if everything <= self._settings.budget:
            return None, everything
        count, size = most_within(self._settings.budget, self._everything.count, weight)
        return self._fitting(count, size)

    def _fitting(self, count: int, size: int) -> _Fitting | None:
        if count:
            return self._everything.resized(count), size
        self.smallest = min(self.smallest or size, size)
        return None


def _reason(chosen: PlanRow, good: Sequence[PlanRow], minimum: float, temperature: float) -> str:
    enough = f"at least {minimum:.4g} at T = {temperature:g}"
    if not good:
        return f"keeps the most; nothing that fits keeps {enough}"
    if chosen.pruned is None:
        reason = f"keeps every view, and the most of each label among those that keep {enough}"
    else:
        reason = f"most views per image among those that keep {enough}"
    fitted = {row.name for row in good if row.asked is not None}
    if fitted and chosen.asked is None:
        reason += f"; here a {' or '.join(sorted(fitted))} basis costs more than it saves"
    return reason
