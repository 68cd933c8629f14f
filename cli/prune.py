"""``lpld-labels prune``: a smaller pool of the same labels."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from .console import human_bytes, output, print_json
from .parameters import ByteSize, Share
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.rewriting.prune import PrunePlan

METRICS = ("correct", "diff", "diff_signed", "cut_ratio", "confidence")


@click.command("prune")
@click.argument("pool")
@click.argument("out", type=click.Path())
@click.option("--ratio", type=float, help="Keep floor(n / RATIO) of the n complete batches.")
@click.option(
    "--count",
    type=click.Choice(["exact", "paper"]),
    default="exact",
    show_default=True,
    help="With --ratio: as said, or as LPLD's programs reckon; with --level epoch, whole epochs only.",
)
@click.option("--budget", type=ByteSize(), help="Keep as many batches as fit, e.g. 300MB (to within 0.1 %).")
@click.option(
    "--level",
    type=click.Choice(["batch", "epoch"]),
    default="batch",
    show_default=True,
    help="Choose batches, or whole epochs with the last one cut short.",
)
@click.option(
    "--by",
    type=click.Choice(["random", *METRICS]),
    default="random",
    show_default=True,
    help="Random order, or a metric of how easy the teacher found a batch.",
)
@click.option(
    "--prefer", type=click.Choice(["hard", "easy", "uniform"]), help="Which end of a metric to keep."
)
@click.option("--drop-easy", type=Share(), default=0.0, help="Leave out the easiest share first, e.g. 10%.")
@click.option("--drop-hard", type=Share(), default=0.0, help="Leave out the hardest share first, e.g. 30%.")
@click.option(
    "--drop-by",
    type=click.Choice(METRICS),
    default="confidence",
    show_default=True,
    help="The metric behind --drop-easy and --drop-hard.",
)
@click.option(
    "--keep-partial", is_flag=True, help="Let incomplete batches (the last of an epoch) compete too."
)
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the random order.  [default: the pool's]")
@click.option("--dry-run", is_flag=True, help="Print the plan with bytes and class coverage; write nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(pool: str, out: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Write a smaller pool OUT that keeps some batches of POOL, bit for bit.

    Incomplete batches are left out first. The random order depends on nothing but the seed and the
    batches' keys, so prunings nest: pruning 10x and then 4x is the same as pruning 40x at once.

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
      lpld-labels prune pool calibrated --ratio 20 --drop-easy 10% --drop-hard 30%
    """
    if (options["ratio"] is None) == (options["budget"] is None):
        raise click.UsageError("give either --ratio or --budget")
    if (options["by"] == "random") != (options["prefer"] is None):
        raise click.UsageError("--prefer goes with --by METRIC, and --by METRIC needs --prefer")

    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.rewriting.engine import require_possible
    from lpld_labels.rewriting.prune import PruneSettings, plan_prune, write_pruned
    from lpld_labels.rewriting.prune_plan import Coverage

    # Batches are visited in file order, so one block of views and two shards at a time are enough.
    with PoolReader(pool, view_cache_bytes=0, open_shards=2) as reader:
        require_possible(out, reader)
        with progress_bar("scoring batches") as progress:
            plan = plan_prune(reader, PruneSettings(**options), progress=progress)
        before = pool_bytes(reader.manifest)
        if dry_run:
            coverage = Coverage.of(reader, plan)
            _show(
                _facts(reader, plan, before, plan.estimated_bytes) | {"coverage": asdict(coverage)}, as_json
            )
            return
        with progress_bar("copying batches") as progress:
            manifest = write_pruned(reader, out, plan, progress=progress)
        plan = plan.resized(manifest.counts.batches)
        facts = _facts(reader, plan, before, pool_bytes(manifest))
        _show(facts | {"out": out, "content_digest": manifest.content_digest}, as_json)


def _facts(reader: PoolReader, plan: PrunePlan, before: int, after: int) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {
        "pool": reader.location,
        "parameters": plan.parameters(),
        "batches": {"pool": len(reader), "candidates": plan.considered, "kept": plan.count},
        "bytes": {"pool": before, "kept": after, "smaller": round(before / after, 3)},
    }


def _show(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    from rich.table import Table

    batches, sizes, parameters = facts["batches"], facts["bytes"], facts["parameters"]
    table = Table(title=f"Prune {facts['pool']}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row(
        "keep", f"{batches['kept']} of {batches['candidates']} batches (the pool has {batches['pool']})"
    )
    table.add_row(
        "bytes", f"{human_bytes(sizes['pool'])} -> {human_bytes(sizes['kept'])}, {sizes['smaller']:.3g}x"
    )
    table.add_row("chosen", _choice(parameters))
    if "coverage" in facts:
        table.add_row("coverage", _coverage(facts["coverage"]))
    if "out" in facts:
        table.add_row("written", facts["out"])
        table.add_row("content", facts["content_digest"])
    output().print(table)


def _choice(parameters: dict[str, Any]) -> str:
    how = (
        "at random"
        if parameters["metric"] == "random"
        else f"{parameters['prefer']} by {parameters['metric']}"
    )
    text = f"{how}, {parameters['level']} level, seed {parameters['seed']}"
    if parameters["drop_by"]:
        text += (
            f", without the easiest {parameters['drop_easy']:.3g} and hardest "
            f"{parameters['drop_hard']:.3g} by {parameters['drop_by']}"
        )
    return text


def _coverage(coverage: dict[str, Any]) -> str:
    return (
        f"{coverage['classes']} of {coverage['all_classes']} classes, "
        f"{coverage['images']} of {coverage['all_images']} images, {coverage['epochs']} epochs; "
        f"views per class: fewest {coverage['fewest_views']}, median {coverage['median_views']:g}"
    )
