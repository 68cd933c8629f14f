"""``lpld-labels prune``: write a smaller pool with some of the label batches."""

from __future__ import annotations

from typing import Any

import click

from lpld_labels.verbs import PruneCall, prune

from .console import says_if_finished, show
from .options import POOL_BUDGET, call_options, given_only, json_option, out_argument, pool_argument
from .progress import CommandProgress


@click.command("prune")
@pool_argument
@out_argument
@call_options(PruneCall, types={"budget": POOL_BUDGET})
@json_option
def command(pool: str, out: str, as_json: bool, **given: Any) -> None:
    """Write a smaller pool OUT that keeps some batches of POOL, bit for bit.

    Incomplete batches are dropped first. The random order depends only on the seed and the batches' keys,
    so prunings nest: pruning 10x and then 4x equals pruning 40x at once.

    \b
    Metrics, averaged over a batch or epoch; high is easy (z logits, y the image's class):
      correct      share of views with argmax z = y
      diff         gap between the two largest logits
      diff_signed  z_y minus the largest other logit
      cut_ratio    weight of the view itself in CutMix or MixUp
      confidence   largest softmax value

    \b
    Examples:
      lpld-labels prune pool pool_40x --ratio 40
      lpld-labels prune pool small --budget 300MB --dry-run
      lpld-labels prune pool hard --ratio 40 --by confidence --prefer hard
    """
    with says_if_finished(None if given["dry_run"] else out):
        result = prune(pool, out, progress=CommandProgress(), **given_only(given))
    show(f"Prune {result.pool}", result.as_json(), as_json=as_json)
