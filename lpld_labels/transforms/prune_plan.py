"""Planning a prune: what is asked for, which batches that means, what it will weigh and cover."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lpld_labels.codecs.fitting import NO_KEEPER, Keeper
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import PoolSize, most_within
from lpld_labels.pool.view_counts import views_per_image
from lpld_labels.transforms.metrics import METRICS, score_batches
from lpld_labels.transforms.selection import (
    COUNTS,
    LEVELS,
    PREFERENCES,
    Candidates,
    Places,
    Scores,
    choose,
    drop_extremes,
    kept_count,
    paper_count,
)


@dataclass(frozen=True, kw_only=True)
class PruneSettings:
    """What to keep. Exactly one of `ratio` and `budget` is given.

    ratio: keep floor(n / ratio) of the n candidate batches.
    count: "exact", as said, or "paper", as LPLD's programs reckon: see `paper_count`.
    budget: keep as many as fit into this many bytes, everything that belongs to the pool counted.
    level: choose "batch"es, or whole "epoch"s with the last one cut short.
    by: "random" or one of `METRICS`; with a metric, prefer says "hard", "easy" or "uniform".
    drop_easy, drop_hard: shares (0 to 1) to leave out before choosing, by the metric `drop_by`.
    keep_partial: let incomplete batches (the last of an epoch) be candidates too.
    seed: of the random order; None means the pool's own seed, or 0 where it has none.
    """

    ratio: float | None = None
    count: str = "exact"
    budget: int | None = None
    level: str = "batch"
    by: str = "random"
    prefer: str | None = None
    drop_easy: float = 0.0
    drop_hard: float = 0.0
    drop_by: str = "confidence"
    keep_partial: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        if (self.ratio is None) == (self.budget is None):
            raise InvalidArgumentError("give either a ratio or a budget", expected="one of them")
        if self.count != "exact" and self.ratio is None:
            raise InvalidArgumentError("a way to count goes with a ratio", got=self.count)
        known = {"level": LEVELS, "count": COUNTS, "by": ("random", *METRICS), "drop_by": METRICS}
        for field, choices in known.items():
            if getattr(self, field) not in choices:
                raise InvalidArgumentError(
                    f"unknown {field}", expected=f"one of {', '.join(choices)}", got=getattr(self, field)
                )
        allowed = (None,) if self.by == "random" else PREFERENCES
        if self.prefer not in allowed:
            raise InvalidArgumentError(
                f"prefer does not go with choosing by {self.by}",
                expected=" or ".join(str(choice) for choice in allowed),
                got=self.prefer,
            )

    @property
    def drops(self) -> bool:
        return self.drop_easy != 0 or self.drop_hard != 0


@dataclass(frozen=True, kw_only=True, eq=False)
class PrunePlan:
    """What a prune will do.

    considered: number n of candidate batches before extremes were dropped.
    candidates: the batches to choose from. kept: places of the chosen ones in the parent's index.
    """

    settings: PruneSettings
    seed: int
    considered: int
    candidates: Candidates
    kept: Places
    sizes: PoolSize

    @property
    def count(self) -> int:
        return len(self.kept)

    @property
    def rows(self) -> int:
        """Views that stay."""
        kept = np.isin(self.candidates.places, self.kept)
        return int(self.candidates.rows[kept].sum())

    @property
    def estimated_bytes(self) -> int:
        """What the new pool will weigh, judging by its parent."""
        return self.sizes.total(self.count, rows=self.rows)

    def resized(self, count: int) -> PrunePlan:
        """Return the plan that keeps another number of batches."""
        settings = self.settings
        kept = choose(self.candidates, count, level=settings.level, prefer=settings.prefer, seed=self.seed)
        return replace(self, kept=kept)

    def parameters(self) -> dict[str, Any]:
        """Return what lineage records, as JSON values."""
        settings = self.settings
        return {
            "ratio": settings.ratio,
            **({} if settings.count == "exact" else {"count": settings.count}),
            "budget_bytes": settings.budget,
            "level": settings.level,
            "metric": settings.by,
            "prefer": settings.prefer,
            "drop_easy": settings.drop_easy,
            "drop_hard": settings.drop_hard,
            "drop_by": settings.drop_by if settings.drops else None,
            "keep_partial": settings.keep_partial,
            "seed": self.seed,
            "kept_batches": self.count,
            "candidate_batches": self.considered,
        }


def plan_prune(
    pool: PoolReader,
    settings: PruneSettings,
    *,
    keeper: Keeper = NO_KEEPER,
    progress: Progress | None = None,
) -> PrunePlan:
    """Decide which batches stay. Random choice needs no byte of labels; metrics read them all once.

    keeper: of the scores on their way (`unfinished_at`).
    progress: called with (done, total) batches while metrics are computed.
    """
    seed = settings.seed if settings.seed is not None else pool.header.seed or 0
    candidates = _candidates(pool, settings)
    considered = len(candidates)
    count = _wanted_count(candidates, settings)
    scores = _scores(pool, candidates, settings, keeper, progress)
    if settings.by != "random":
        candidates = replace(candidates, scores=scores[settings.by])
    if settings.drops:
        candidates = drop_extremes(
            candidates,
            scores[settings.drop_by],
            level=settings.level,
            easy=settings.drop_easy,
            hard=settings.drop_hard,
            seed=seed,
        )
    if count is not None and count > len(candidates):
        raise InvalidArgumentError(
            "too few batches are left after dropping extremes",
            expected=f"at least {count}",
            got=len(candidates),
            hint=f"drop less, or give a ratio of at least {considered / max(len(candidates), 1):.4g}",
        )
    plan = PrunePlan(
        settings=settings,
        seed=seed,
        considered=considered,
        candidates=candidates,
        kept=candidates.places,
        sizes=PoolSize.of(pool),
    )
    return plan.resized(count if count is not None else _fitting_count(plan))


def _wanted_count(candidates: Candidates, settings: PruneSettings) -> int | None:
    if settings.ratio is None:
        return None
    if settings.count == "paper":
        return paper_count(candidates, settings.ratio, level=settings.level)
    return kept_count(len(candidates), settings.ratio)


def _candidates(pool: PoolReader, settings: PruneSettings) -> Candidates:
    index = pool.index
    places = np.arange(len(index), dtype=np.int64)
    everything = Candidates(places=places, epochs=index.epochs, batches=index.batches, rows=index.rows)
    if settings.keep_partial:
        return everything
    complete = everything.subset(index.rows == pool.header.batch_size)
    if len(complete) == 0:
        raise InvalidArgumentError(
            "the pool has no complete batch",
            where=pool.location,
            expected=f"batches of {pool.header.batch_size} rows",
            hint="keep partial batches (--keep-partial)",
        )
    return complete


def _scores(
    pool: PoolReader,
    candidates: Candidates,
    settings: PruneSettings,
    keeper: Keeper,
    progress: Progress | None,
) -> dict[str, Scores]:
    """Return the scores of the candidates by each metric that the settings call for."""
    wanted = [settings.by] if settings.by != "random" else []
    if settings.drops and settings.drop_by not in wanted:
        wanted.append(settings.drop_by)
    keys = pool.index.keys_at(candidates.places)
    order = pool.index.in_file_order(keys)
    place_of = {key: place for place, key in enumerate(keys)}
    scores = {}
    for number, metric in enumerate(wanted):

        def report(done: int, total: int, number: int = number) -> None:
            if progress is not None:
                progress(number * total + done, len(wanted) * total)

        scores[metric] = np.empty(len(candidates))
        places = [place_of[key] for key in order]
        scores[metric][places] = score_batches(pool, order, metric, keeper=keeper, progress=report)
    return scores


def _fitting_count(plan: PrunePlan) -> int:
    """Return the largest number of batches whose estimated bytes fit the budget."""
    budget = plan.settings.budget or 0
    fits = most_within(budget, len(plan.candidates), lambda count: plan.resized(count).estimated_bytes)
    if fits == 0:
        raise too_small(plan, plan.resized(1).estimated_bytes)
    return fits


def too_small(plan: PrunePlan, smallest: int) -> InvalidArgumentError:
    """Return the error for a budget that not even one batch fits."""
    return InvalidArgumentError(
        "budget is too small for even one batch",
        expected=f"at least {smallest} bytes",
        got=f"{plan.settings.budget} bytes",
        hint="that is one batch with the image table, codec tables and manifest",
    )


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How much of the data set the kept batches still show."""

    epochs: int
    images: int
    all_images: int
    classes: int
    all_classes: int
    fewest_views: int
    median_views: float

    @staticmethod
    def of(pool: PoolReader, plan: PrunePlan) -> Coverage:
        """Count images and classes of the kept views; reads one small view column."""
        index = pool.index
        seen = views_per_image(pool, plan.kept)
        return Coverage._counted(pool, seen, epochs=len(np.unique(index.epochs[plan.kept])))

    @staticmethod
    def of_pool(pool: PoolReader) -> Coverage:
        """Count images and classes of all views of a pool; reads one small view column."""
        return Coverage._counted(pool, views_per_image(pool), epochs=pool.manifest.counts.epochs)

    @staticmethod
    def _counted(pool: PoolReader, seen: np.ndarray[Any, Any], *, epochs: int) -> Coverage:
        """seen: int64 [images], views of each."""
        present = np.unique(pool.images.classes)
        per_class = np.bincount(pool.images.classes, weights=seen)[present]
        return Coverage(
            epochs=epochs,
            images=int((seen > 0).sum()),
            all_images=len(seen),
            classes=int((per_class > 0).sum()),
            all_classes=len(present),
            fewest_views=int(per_class.min()),
            median_views=float(np.median(per_class)),
        )
