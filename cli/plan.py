"""``lpld-labels plan``: how far to prune and which codec to use for a byte budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes
from lpld_labels.transforms.settings import PlanSettings

from .common import (
    FOLDER,
    jobs_option,
    json_option,
    overwrite_option,
    pool_argument,
    quiet,
    says_if_finished,
)
from .console import Column, fitted_table, print_json, print_line, stdout_console
from .options import settings_options, take
from .parameters import Amount, Budget
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.plan import BudgetPlan


@click.command("plan")
@pool_argument
@settings_options(PlanSettings, types={"budget": Budget(images=True)})
@click.option("--images", type=FOLDER, help="The image folder, to weigh the images.")
@click.option("--apply", "out", type=click.Path(), metavar="OUT", help="Write the recommended pool.")
@jobs_option("Processes of --apply.")
@overwrite_option
@json_option()
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
    """Say how POOL can fit a budget: prune ratio x codec, with what is kept.

    For every codec setting the table has the smallest prune ratio that fits, whole pool counted:
    labels, views, codec tables, image table. The recommended row has the most views per image among
    those that keep enough of each label (--min-fidelity). --apply prunes and encodes accordingly. A
    training temperature that falls over the epochs (train --temperature-schedule) needs labels kept at
    all of them: look at every "kept" column. Full logits and klt serve every temperature, top-k only low
    ones.

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
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.pipeline import require_output
    from lpld_labels.transforms.plan import applied_step, image_bytes, plan_budget

    with PoolReader(pool, view_cache_bytes=0) as reader:
        image_size = None if images is None else image_bytes(images, reader.images)
        limit = budget.bytes(pool=pool_bytes(reader.manifest), images=image_size or 0)
        settings = take(PlanSettings, options, budget=limit)
        if out is not None:
            step = applied_step(reader, settings)
            require_output(out, reader.location, overwrite=overwrite, step=step)
        with progress_bar("trying codecs") as progress:
            plan = plan_budget(reader, settings, progress=progress)
        facts = _facts(reader, plan, image_size)
        if not as_json:
            _show(facts, plan)
        if out is not None:
            facts["applied"] = _apply(reader, out, plan, jobs=jobs, overwrite=overwrite)
            if not as_json and not quiet():
                _say_applied(facts["applied"])
    if as_json:
        print_json(facts)


def _facts(reader: PoolReader, plan: BudgetPlan, image_size: int | None) -> dict[str, Any]:
    """Return the plan as JSON values."""
    from lpld_labels.pool.sizes import pool_bytes

    counts = reader.manifest.counts
    return {
        "pool": reader.location,
        "budget": plan.settings.budget,
        "bytes": {"pool": pool_bytes(reader.manifest), "images": image_size},
        "views_per_image": round(counts.rows / max(counts.images, 1), 3),
        "min_fidelity": plan.minimum,
        "temperature": plan.settings.temperature,
        "rows": [row.as_json() for row in plan.rows],
        "recommended": plan.recommended.as_json(),
    }


def _show(facts: dict[str, Any], plan: BudgetPlan) -> None:
    console = stdout_console()
    weight = f"{human_bytes(facts['bytes']['pool'])}, {facts['views_per_image']:g} views per image"
    title = f"{facts['pool']} ({weight}) within {human_bytes(facts['budget'])}"
    recommended = plan.rows.index(plan.recommended)
    # The caption's place is the console's own line: a table's title is folded at the table's width.
    console.print(title, style="italic", highlight=False, soft_wrap=True, markup=False)
    console.print(fitted_table(console, _columns(plan), bold_row=recommended))
    chosen = plan.recommended
    ratio = "" if chosen.pruned is None else f"prune {chosen.ratio:.4g}x, "
    console.print(f"-> {ratio}{chosen.title}: {chosen.reason}", highlight=False)


def _columns(plan: BudgetPlan) -> list[Column]:
    """Return the table, column by column; those that decide never go."""
    rows = plan.rows
    kept = [
        Column(
            heading=f"kept\nT={temperature:g}",
            cells=[f"{row.fidelity.kept[temperature]:.4f}" for row in rows],
            may_go=0 if temperature == plan.settings.temperature else 1,
        )
        for temperature in rows[0].fidelity.kept
    ]
    return [
        Column(heading="", cells=["->" if row.recommended else "" for row in rows]),
        Column(heading="codec", cells=[row.title for row in rows], justify_right=False),
        Column(
            heading="prune", cells=["none" if row.pruned is None else f"{row.ratio:.4g}x" for row in rows]
        ),
        Column(heading="bytes", cells=[human_bytes(row.bytes) for row in rows]),
        Column(heading="bytes\n/row", cells=[f"{row.bytes / row.rows:.0f}" for row in rows], may_go=3),
        Column(heading="views\n/image", cells=[f"{row.views_per_image:.3g}" for row in rows]),
        *kept,
        Column(heading="top-1\nkept", cells=[f"{row.fidelity.top1:.3f}" for row in rows], may_go=2),
    ]


def _apply(reader: PoolReader, out: str, plan: BudgetPlan, *, jobs: int, overwrite: bool) -> dict[str, Any]:
    from lpld_labels.exec.local import LocalExecutor
    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.plan import apply_plan

    with says_if_finished(Path(out) / MANIFEST_FILE), progress_bar("encoding batches") as progress:
        manifest = apply_plan(
            reader, out, plan, executor=LocalExecutor(jobs), overwrite=overwrite, progress=progress
        )
    return {
        "out": out,
        "bytes": pool_bytes(manifest),
        "batches": manifest.counts.batches,
        "fidelity": plan.recommended.fidelity.as_json(),
        "content_digest": manifest.content_digest,
    }


def _say_applied(facts: dict[str, Any]) -> None:
    kept = ", ".join(f"{value:.4f} at T = {t}" for t, value in facts["fidelity"]["kept"].items())
    print_line(
        f"written {facts['out']}: {facts['batches']} batches, {human_bytes(facts['bytes'])}, kept {kept}",
        err=True,
    )
