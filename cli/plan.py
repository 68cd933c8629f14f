"""``lpld-labels plan``: the prune ratio and codec that fit a byte budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes
from lpld_labels.transforms.settings import PlanSettings

from .console import print_json, says_if_finished, show, stdout_console
from .options import (
    BUDGET,
    FOLDER,
    Amount,
    json_option,
    overwrite_option,
    pool_argument,
    settings_options,
    take,
)
from .progress import progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.transforms.plan import BudgetPlan


@click.command("plan")
@pool_argument
@settings_options(PlanSettings, types={"budget": BUDGET})
@click.option(
    "--images", type=FOLDER, help="The labelled image folder; a budget in x-images is a multiple of its size."
)
@click.option("--apply", "out", type=click.Path(), metavar="OUT", help="Write the recommended pool.")
@click.option(
    "-j", "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes of --apply."
)
@overwrite_option
@json_option
def command(
    pool: str,
    budget: Amount,
    images: Path | None,
    out: str | None,
    jobs: int,
    overwrite: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the prune ratio and codec with which POOL fits a byte budget.

    For every codec the table shows the smallest prune ratio that fits; bytes count labels, views, codec
    tables and the image table. The recommended row has the most views per image among those that keep
    enough of each label (--min-fidelity). --apply writes that pool.

    Training at a temperature that falls over the epochs (train --temperature-schedule) uses labels at all
    of these temperatures: check every "kept" column. Full logits and klt serve every temperature, top-k
    only low ones.

    \b
    Examples:
      lpld-labels plan pool --budget 300MB
      lpld-labels plan pool --budget 1x-images --images syn/       fewer labels than images?
      lpld-labels plan pool --budget 30MB --codec klt --codec topk:50
      lpld-labels plan pool --budget 300MB --apply small --jobs 4
    """
    if budget.of == "images" and images is None:
        raise click.UsageError("a budget in x-images needs --images DIR")
    if overwrite and out is None:
        raise click.UsageError("--overwrite goes with --apply OUT")
    from lpld_labels.exec.local import LocalExecutor
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.pipeline import require_output
    from lpld_labels.transforms.plan import applied_step, apply_plan, image_bytes, plan_budget

    with PoolReader(pool, view_cache_bytes=0) as reader:
        size, counts = pool_bytes(reader.manifest), reader.manifest.counts
        image_size = None if images is None else image_bytes(images, reader.images)
        limit = budget.bytes(pool=size, images=image_size or 0)
        settings = take(PlanSettings, options, budget=limit)
        if out is not None:
            step = applied_step(reader, settings)
            require_output(out, reader.location, overwrite=overwrite, step=step)
        with progress_bar("trying codecs") as progress:
            plan = plan_budget(reader, settings, progress=progress)
        facts: dict[str, Any] = {
            "pool": reader.location,
            "budget": plan.settings.budget,
            "bytes": {"pool": size, "images": image_size},
            "views_per_image": round(counts.rows / max(counts.images, 1), 3),
            "min_fidelity": plan.minimum,
            "temperature": plan.settings.temperature,
            "rows": [row.as_json() for row in plan.rows],
            "recommended": plan.recommended.as_json(),
        }
        if not as_json:
            _show(facts, plan)
        if out is not None:
            executor = LocalExecutor(jobs)
            with says_if_finished(out), progress_bar("encoding batches") as progress:
                manifest = apply_plan(
                    reader, out, plan, executor=executor, overwrite=overwrite, progress=progress
                )
            facts["applied"] = {
                "out": out,
                "bytes": pool_bytes(manifest),
                "batches": manifest.counts.batches,
                "fidelity": plan.recommended.fidelity.as_json(),
                "content_digest": manifest.content_digest,
            }
            if not as_json:
                show(f"Written {out}", facts["applied"], as_json=False)
    if as_json:
        print_json(facts)


def _show(facts: dict[str, Any], plan: BudgetPlan) -> None:
    console = stdout_console()
    weight = f"{human_bytes(facts['bytes']['pool'])}, {facts['views_per_image']:g} views per image"
    title = f"{facts['pool']} ({weight}) within {human_bytes(facts['budget'])}"
    # Not the table's title, which would be folded at the table's width.
    console.print(title, style="italic", highlight=False, soft_wrap=True, markup=False)
    console.print(_table(plan))
    chosen = plan.recommended
    ratio = "" if chosen.pruned is None else f"prune {chosen.ratio:.4g}x, "
    console.print(f"-> {ratio}{chosen.title}: {chosen.reason}", highlight=False)


def _table(plan: BudgetPlan) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    temperatures = list(plan.recommended.fidelity.kept)
    table.add_column("")
    table.add_column("codec", no_wrap=True)
    for heading in ("prune", "bytes", "views\n/image", *(f"kept\nT={one:g}" for one in temperatures)):
        table.add_column(heading, justify="right", overflow="fold", no_wrap=heading == "bytes")
    for row in plan.rows:
        table.add_row(
            "->" if row.recommended else "",
            escape(row.title),
            "none" if row.pruned is None else f"{row.ratio:.4g}x",
            human_bytes(row.bytes),
            f"{row.views_per_image:.3g}",
            *(f"{row.fidelity.kept[one]:.3f}" for one in temperatures),
            style="bold" if row.recommended else None,
        )
    return table
