"""What lineage says was done, as settings that do the same again.

Whoever has a pool's manifest, its teacher and its images can so make it once more, or at another ratio.
Lineage comes out of a file, so whatever stands there is checked as if it had been typed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import LineageStep, Manifest
from lpld_labels.transforms.lineage import SETTINGS, settings_from
from lpld_labels.transforms.prune import PruneSettings
from lpld_labels.transforms.selection import ratio_that_keeps


@dataclass(frozen=True, kw_only=True)
class Past:
    """How a pool came to be.

    build: what is recorded of its labelling; None where it was not labelled by `build`.
    ratio: to label at, so that what random pruning then dropped is not labelled at all.
    later: the steps after that, or all of them.
    """

    build: Mapping[str, Any] | None
    ratio: float
    later: tuple[LineageStep, ...]


def past_of(manifest: Manifest) -> Past:
    """Return a pool's past: its last build, with the random prunings that directly follow folded into it."""
    lineage = manifest.header.lineage
    builds = _leading_builds(lineage)
    if not builds:
        return Past(build=None, ratio=1.0, later=lineage)
    # Each build adds to the one before it, so the last one has all.
    build = lineage[builds - 1].parameters
    ratio, later = _number(build.get("ratio"), 1.0), lineage[builds:]
    complete = int(_number(build.get("epochs"), 0)) * (
        manifest.counts.images // max(manifest.header.batch_size, 1)
    )
    while later and build.get("replayable_by") is None:
        kept = _random_part(later[0], manifest.header.seed, complete)
        if kept is None:
            break
        ratio, later = ratio_that_keeps(kept, complete), later[1:]
    return Past(build=build, ratio=ratio, later=later)


def prune_settings(step: LineageStep) -> PruneSettings:
    """Return the settings of a prune; of a budget, the ratio that came of it."""
    known = step.parameters
    settings = settings_from(PruneSettings, known.get(SETTINGS))
    try:
        ratio, seed = settings.ratio, known["random_seed"]
        if ratio is None:
            ratio = ratio_that_keeps(int(known["kept_batches"]), int(known["candidate_batches"]))
        return replace(settings, ratio=ratio, budget=None, seed=seed)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise _unknown(step) from error


def repeatable(step: LineageStep) -> bool:
    """Whether a step can be done again."""
    return step.operation in ("prune", "encode")


def _leading_builds(lineage: Sequence[LineageStep]) -> int:
    count = 0
    while count < len(lineage) and lineage[count].operation == "build":
        count += 1
    return count


def _random_part(step: LineageStep, seed: int | None, complete: int) -> int | None:
    """Return how many of the complete batches a step leaves, if building could have left out the others."""
    known = step.parameters
    if step.operation != "prune" or known.get("random_seed") != seed:
        return None
    asked = settings_from(PruneSettings, known.get(SETTINGS))
    if asked.level != "batch" or asked.by != "random" or asked.keep_partial:
        return None
    kept = known.get("kept_batches")
    # All of them: a build at ratio 1 would label the incomplete ones too.
    return kept if isinstance(kept, int) and 1 <= kept < complete else None


def _number(value: Any, otherwise: float) -> float:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else otherwise


def _unknown(step: LineageStep) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"step '{step.operation[:40]}' of the pool's lineage cannot be done again from what is recorded",
        got=str(step.parameters)[:120],
        hint="see what `lpld-labels recipe` prints",
    )
