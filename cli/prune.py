"""``lpld-labels prune``: write a smaller pool with some of the label batches."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from lpld_labels.transforms.settings import PruneSettings

from .console import says_if_finished, show
from .options import (
    POOL_BUDGET,
    Amount,
    json_option,
    out_argument,
    overwrite_option,
    pool_argument,
    settings_options,
    take,
)
from .progress import progress_bar


@click.command("prune")
@pool_argument
@out_argument
@settings_options(PruneSettings, types={"budget": POOL_BUDGET})
@click.option("--dry-run", is_flag=True, help="Print the plan with bytes and class coverage; write nothing.")
@overwrite_option
@json_option
def command(
    pool: str, out: str, budget: Amount | None, dry_run: bool, overwrite: bool, as_json: bool, **options: Any
) -> None:
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
    from lpld_labels.pool.publish import coverage_of, views_per_image
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.lineage import step
    from lpld_labels.transforms.pipeline import require_output
    from lpld_labels.transforms.prune import plan_prune, write_pruned

    # Batches are read in file order: one block of views and two open shards are enough.
    with PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader:
        before = pool_bytes(reader.manifest)
        limit = None if budget is None else budget.bytes(pool=before)
        settings = take(PruneSettings, options, budget=limit)
        done = step("prune", reader.manifest.content_digest, settings)
        require_output(out, reader.location, overwrite=overwrite, step=done)
        with progress_bar("scoring batches") as progress:
            plan = plan_prune(reader, settings, progress=progress)
        after, written = plan.most_bytes, {}
        if not dry_run:
            with says_if_finished(out), progress_bar("copying batches") as progress:
                manifest = write_pruned(plan, out, overwrite=overwrite, progress=progress)
            after, written = pool_bytes(manifest), {"out": out, "content_digest": manifest.content_digest}
        kept = coverage_of(views_per_image(reader, plan.kept), reader.images.classes)
        facts = {
            "pool": reader.location,
            "parameters": asdict(plan.settings) | plan.results,
            "batches": {"pool": len(reader), "candidates": len(plan.candidates), "kept": plan.count},
            "bytes": {"pool": before, "kept": after, "smaller": round(before / after, 3)},
            **written,
            "coverage": {"pool": asdict(reader.manifest.coverage), "kept": asdict(kept)},
        }
    show(f"Prune {reader.location}", facts, as_json=as_json)
