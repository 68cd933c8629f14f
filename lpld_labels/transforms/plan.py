"""Planning a byte budget: how far to prune and which codec to use, so that everything fits.

Pruning decides how many views stay, a codec how many bytes each takes. For every codec setting there is
one smallest prune ratio that fits the budget. The plan lists these with what they keep, measured, and
recommends the one with the most views among those that keep enough of each label: as much as the best
students did whose labels took such a budget (measured.py), unless told otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lpld_labels.codecs import codec_named, planned_codecs
from lpld_labels.codecs.fidelity import TEMPERATURES, Fidelity
from lpld_labels.codecs.fitting import NO_KEEPER, Keeper
from lpld_labels.errors import ImageMismatchError, InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.images import ImageTable
from lpld_labels.format.schema import Views
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import PoolSize, most_within
from lpld_labels.transforms.change_views import require_drawable
from lpld_labels.transforms.codec_request import DEFAULT_TEMPERATURE, CodecRequest, FittedCodecs
from lpld_labels.transforms.encode import refuse_lossy
from lpld_labels.transforms.encode_size import weigh
from lpld_labels.transforms.label_sample import LabelSample
from lpld_labels.transforms.measured import DistinctViews, Loss, best_fidelity
from lpld_labels.transforms.selection import kept_count

FIDELITIES = (0.99, 0.97, 0.95, 0.90, 0.80)
MEASURED_SLACK = 0.001
"""A codec solved for .97 on some rows may measure .9695 on others; that is still .97."""
ROUNDS = 2
"""How often a codec is fitted: the number of rows decides the basis, and the basis how many rows fit."""


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One way to fit the budget.

    ratio: prune ratio. whole: nothing is pruned, incomplete batches stay too. keep_partial: the pool has no
    complete batch, so its incomplete ones are what is pruned. batches, rows: what stays.
    bytes: estimate of the whole pool. expected_loss: by pruning alone; None where it is not known.
    """

    request: CodecRequest
    ratio: float
    whole: bool
    batches: int
    rows: int
    bytes: int
    views_per_image: float
    fidelity: Fidelity
    keep_partial: bool = False
    expected_loss: Loss | None = None
    reason: str = ""

    @property
    def recommended(self) -> bool:
        """Whether this is the row to take."""
        return bool(self.reason)

    @property
    def codec(self) -> str:
        """The codec and its setting in a few characters."""
        fidelity = self.request.fidelity
        return self.request.name if fidelity is None else f"{self.request.name} {fidelity:g}"

    def as_json(self) -> dict[str, Any]:
        """Return the row as JSON values."""
        # What was measured comes first: it counts its own rows.
        return {
            **self.fidelity.as_json(),
            "codec": self.request.name,
            "fidelity_asked": self.request.fidelity,
            "ratio": self.ratio,
            "whole": self.whole,
            "keep_partial": self.keep_partial,
            "batches": self.batches,
            "rows": self.rows,
            "bytes": self.bytes,
            "bytes_per_row": round(self.bytes / self.rows, 2),
            "views_per_image": round(self.views_per_image, 3),
            "expected_loss": None if self.expected_loss is None else self.expected_loss.as_json(),
            "recommended": self.recommended,
            "reason": self.reason,
        }


@dataclass(frozen=True, kw_only=True)
class BudgetPlan:
    """All ways to fit a budget, the largest number of views first; one of them is recommended.

    minimum: share of the information that the recommended row must keep. measured_ratio: of the measurement
    (see `measured.BEST_FIDELITY`) that it comes from, None where it was asked for.
    """

    budget: int
    minimum: float
    measured_ratio: float | None
    temperature: float
    rows: tuple[PlanRow, ...]

    @property
    def recommended(self) -> PlanRow:
        """The row to take."""
        return next(row for row in self.rows if row.recommended)


def plan_budget(
    pool: PoolReader,
    budget: int,
    *,
    codecs: Sequence[str] = (),
    minimum: float | None = None,
    temperature: float = DEFAULT_TEMPERATURE,
    seed: int = 0,
    views: Views | None = None,
    from_lossy: bool = False,
    keeper: Keeper = NO_KEEPER,
    progress: Progress | None = None,
) -> BudgetPlan:
    """Find the smallest prune ratio at which each codec setting fits the budget in bytes.

    codecs: names to consider, all that are planned with if none; one that is fitted (``klt``) stands for
        one row per fidelity of FIDELITIES and `minimum`.
    minimum: share of the information at `temperature` that the recommended row must keep; None for the one
        whose students were best in such a budget.
    views: whether pools keep their views or leave them to be drawn; None to do as this one does.
    keeper: of what is fitted and measured. progress: called with (done, total) settings.
    """
    refuse_lossy(pool, accept=from_lossy)
    require_drawable(pool, views)
    measured_ratio = None
    if minimum is None:
        measured_ratio, minimum = best_fidelity(_f16_ratio(pool, budget, views))
    if not 0 < minimum < 1:
        raise InvalidArgumentError("fidelity is wrong", expected="a number between 0 and 1", got=minimum)
    names = codecs or (*planned_codecs(fitted=False), *planned_codecs(fitted=True))
    requests = list(_requests(names, minimum, temperature, seed))
    law = DistinctViews.of(pool)
    planner = _Planner(pool, budget, temperature, LabelSample(pool, seed=seed, keeper=keeper), views, law)
    rows = []
    for done, request in enumerate(requests, 1):
        row = planner.row(request)
        if row is not None:
            rows.append(row)
        if progress is not None:
            progress(done, len(requests))
    if not rows:
        raise InvalidArgumentError(
            "budget is too small for even one batch",
            expected=f"at least {planner.smallest} bytes",
            got=f"{budget} bytes",
            hint="that is one batch with the image table, codec tables and manifest",
        )
    rows.sort(key=lambda row: (-row.views_per_image, -row.fidelity.kept[temperature], row.bytes))
    marked = _marked(rows, minimum, temperature)
    return BudgetPlan(
        budget=budget,
        minimum=minimum,
        measured_ratio=measured_ratio,
        temperature=temperature,
        rows=tuple(marked),
    )


def image_bytes(folder: str | Path, images: ImageTable) -> int:
    """Return the bytes of the pool's images in a folder."""
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


def _f16_ratio(pool: PoolReader, budget: int, views: Views | None) -> float:
    """Return how far all labels this pool ever had would be pruned to fill the budget in f16."""
    rows = pool.manifest.counts.rows
    if not rows:
        return 1.0
    size = weigh(pool, codec_named("f16"), pool.keys, views)
    law = DistinctViews.of(pool)
    return size.total(len(pool), rows=rows) / max(budget, 1) * law.total / law.views


def _requests(codecs: Sequence[str], minimum: float, temperature: float, seed: int) -> Iterator[CodecRequest]:
    for name in codecs:
        request = CodecRequest(name=name, seed=seed)
        if not request.kind.fitted:
            yield request
            continue
        for fidelity in sorted({*FIDELITIES, minimum}, reverse=True):
            yield replace(request, fidelity=fidelity, temperature=temperature)


class _Planner:
    """Works out one row after the other on one sample of the pool."""

    def __init__(
        self,
        pool: PoolReader,
        budget: int,
        temperature: float,
        sample: LabelSample,
        views: Views | None,
        law: DistinctViews,
    ) -> None:
        self._views = views
        self._pool = pool
        self._budget = budget
        self._temperatures = tuple(sorted({*TEMPERATURES, temperature}))
        self._sample = sample
        complete = int((pool.index.rows == pool.header.batch_size).sum())
        # Pruning leaves incomplete batches out, unless there are no others.
        self._keep_partial = complete == 0
        self._candidates = complete or len(pool)
        self._codecs = FittedCodecs(self._sample)
        self._law = law
        self.smallest = 0

    def row(self, request: CodecRequest) -> PlanRow | None:
        """Return the row of a codec setting, or None if not even one batch fits or it cannot be had."""
        batches = len(self._pool)
        for _ in range(ROUNDS if request.kind.fitted else 1):
            try:
                codec = self._codecs.codec(request, rows=self._rows(batches))
            except InvalidArgumentError as error:
                if not request.kind.fitted:
                    raise
                del error  # This fidelity is out of reach for this pool; other rows say what is not.
                return None
            size = weigh(self._pool, codec, self._pool.keys, self._views)
            batches = self._fitting(size)
            if batches == 0:
                least = size.total(1, rows=self._rows(1))
                self.smallest = min(self.smallest or least, least)
                return None
        whole = batches == len(self._pool)
        # Rounded up to three decimals, so that it keeps at most as many.
        ratio = 1.0 if whole else math.ceil(self._candidates / batches * 1000) / 1000
        batches = batches if whole else kept_count(self._candidates, ratio)
        rows = self._rows(batches)
        loss = self._law.loss(rows)
        fidelity = self._sample.judged(codec, temperatures=self._temperatures)
        return PlanRow(
            request=request,
            ratio=ratio,
            whole=whole,
            batches=batches,
            rows=rows,
            bytes=size.total(batches, rows=rows),
            views_per_image=rows / max(len(self._pool.images), 1),
            fidelity=fidelity,
            keep_partial=self._keep_partial,
            expected_loss=None if isinstance(loss, str) else loss,
        )

    def _rows(self, batches: int) -> int:
        """Return the rows of so many batches: all there are, or full ones; of incomplete ones, the usual."""
        whole = self._pool.manifest.counts.rows
        if batches == len(self._pool):
            return whole
        if self._keep_partial:
            return max(1, round(whole * batches / len(self._pool)))
        return batches * self._pool.header.batch_size

    def _fitting(self, size: PoolSize) -> int:
        """Return how many batches fit: all of them, or some of the complete ones."""
        everything = len(self._pool)
        if size.total(everything, rows=self._rows(everything)) <= self._budget:
            return everything
        return most_within(
            self._budget, self._candidates, lambda count: size.total(count, rows=self._rows(count))
        )


def _marked(rows: Sequence[PlanRow], minimum: float, temperature: float) -> Iterator[PlanRow]:
    """Yield the rows with a reason in the one to take; they come with the most views first."""
    good = [row for row in rows if row.fidelity.kept[temperature] >= minimum - MEASURED_SLACK]
    chosen = good[0] if good else max(rows, key=lambda row: row.fidelity.kept[temperature])
    for row in rows:
        yield replace(row, reason=_reason(row, good, minimum, temperature)) if row is chosen else row


def _reason(chosen: PlanRow, good: Sequence[PlanRow], minimum: float, temperature: float) -> str:
    enough = f"at least {minimum:.4g} at T = {temperature:g}"
    if not good:
        return f"keeps the most; nothing that fits keeps {enough}"
    if chosen.whole:
        reason = f"keeps every view, and the most of each label among those that keep {enough}"
    else:
        reason = f"most views per image among those that keep {enough}"
    fitted = {row.request.name for row in good if row.request.kind.fitted}
    if fitted and not chosen.request.kind.fitted:
        reason += f"; here a {' or '.join(sorted(fitted))} basis costs more than it saves"
    return reason
