"""How many iterations of recovery are enough, judged by the losses of small recoveries.

The learning rate falls to 0 along a cosine, so every loss curve is flat at its end, and only a longer run can
tell. Iterations are enough if about three times as many lower the loss, on the same views, by less than
SETTLED, for every method. The change over the last tenth is recorded too. Losses are not accuracy: group
`settled` trains students on images of fewer iterations.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.accuracy.plan import Plan, RecoveryCheck

if TYPE_CHECKING:
    from benchmarks.accuracy.work import Workshop

SETTLED = 0.05
JUDGING_VIEWS = 32
_FIRST_JUDGING_VIEW = 10**6
"""Beyond all iterations, so that no image was optimised for these views."""
_POINTS = 20


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """The result of a check.

    loss: cross-entropy plus weighted BatchNorm loss at the end, mean over units and JUDGING_VIEWS views.
    last_tenth: relative change of the mean loss from the last but one to the last tenth of the curve.
    curve: mean losses of equal parts of the run.
    """

    loss: float
    last_tenth: float
    curve: tuple[float, ...]
    seconds: float


def check_recovery(workshop: Workshop, check: RecoveryCheck) -> CheckResult:
    """Recover the first group of images and return its losses."""
    import torch

    from lpld_core.recover.optimise import GroupOptimiser, layer_targets

    scale = workshop.scale
    settings = workshop.recovery(check.method, ipc=scale.ipc, iterations=check.iterations)
    teacher = workshop.teacher(check.teacher)
    targets = layer_targets(teacher, workshop.statistics(check.teacher), settings.statistics_kind)
    start = time.process_time()
    optimiser = GroupOptimiser(teacher, settings.groups(teacher.classes)[0], targets, settings)
    losses = []
    for iteration in range(check.iterations):
        total = optimiser.losses(iteration).total(settings.alpha)
        optimiser.step(total.sum(), iteration)
        losses.append(float(total.detach().mean()))
    with torch.no_grad():
        views = range(_FIRST_JUDGING_VIEW, _FIRST_JUDGING_VIEW + JUDGING_VIEWS)
        judged = [float(optimiser.losses(view).total(settings.alpha).mean()) for view in views]
    return CheckResult(
        loss=round(float(np.mean(judged)), 5),
        last_tenth=round(_last_tenth(losses), 5),
        curve=tuple(
            round(float(part.mean()), 5) for part in np.array_split(losses, min(_POINTS, len(losses)))
        ),
        seconds=round(time.process_time() - start, 1),
    )


def _last_tenth(losses: Sequence[float]) -> float:
    width = max(1, len(losses) // 10)
    before, last = np.mean(losses[-2 * width : -width] or losses[:1]), np.mean(losses[-width:])
    return float(last / before - 1)


def enough_iterations(
    plan: Plan, found: Mapping[RecoveryCheck, CheckResult], teacher: str
) -> tuple[int | None, str]:
    """Return the number of iterations, None while checks are missing, and the reason."""
    reasons = []
    for number, iterations in enumerate(plan.check_iterations[:-1]):
        gains = _gains(plan, found, teacher, number)
        if gains is None:
            return None, "checks of recovery are missing"
        text = ", ".join(f"{method} {gain:.1%}" for method, gain in gains.items())
        longer = plan.check_iterations[number + 1]
        reasons.append(f"{longer} instead of {iterations} iterations lower the loss by {text}")
        if max(gains.values()) < SETTLED:
            return iterations, "; ".join(reasons)
    most = plan.check_iterations[-1]
    return most, "; ".join([*reasons, f"{most} is the most this plan takes"])


def checks_wanted(plan: Plan, found: Mapping[RecoveryCheck, CheckResult], teacher: str) -> int:
    """Return how many numbers of iterations to check: the next one only if the last two differ."""
    for number in range(len(plan.check_iterations) - 1):
        gains = _gains(plan, found, teacher, number)
        if gains is None or max(gains.values()) < SETTLED:
            return number + 2
    return len(plan.check_iterations)


def _gains(
    plan: Plan, found: Mapping[RecoveryCheck, CheckResult], teacher: str, number: int
) -> dict[str, float] | None:
    """Return by which share the next number of iterations lowers each loss; None if one is unchecked."""
    gains = {}
    for method in ("lpld", "sre2l"):
        ours, theirs = (
            found.get(RecoveryCheck(method=method, iterations=count, teacher=teacher))
            for count in plan.check_iterations[number : number + 2]
        )
        if ours is None or theirs is None:
            return None
        gains[method] = 1 - theirs.loss / ours.loss
    return gains
