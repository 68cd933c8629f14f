"""``lpld-labels plan``: how far to prune and which codec to use for a byte budget."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from .console import human_bytes, output, print_json, talk
from .parameters import ByteSize
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_labels.format.schema import Views
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.rewriting.plan import BudgetPlan

_TIMES_IMAGES = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)x-images\s*")


class Budget(click.ParamType[tuple[float, str]]):
    """A number of bytes or a multiple of the images' bytes: ``300MB``, ``1.0x-images``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, str]:
        """Return (number, "bytes") or (number, "images")."""
        match = _TIMES_IMAGES.fullmatch(str(value))
        if match is None:
            return float(ByteSize().convert(value, param, ctx)), "bytes"
        if float(match[1]) <= 0:
            self.fail(f"{value!r} leaves no bytes at all", param, ctx)
        return float(match[1]), "images"


@click.command("plan")
@click.argument("pool")
@click.option("--budget", type=Budget(), required=True, help="E.g. 300MB, or 1.0x-images with --images.")
@click.option("--images", type=click.Path(), help="The image folder, to weigh the images.")
@click.option(
    "--codec",
    "codecs",
    multiple=True,
    help="Consider this codec; repeat for more.  [default: f16, int8, int6, int4, klt]",
)
@click.option(
    "--min-fidelity",
    type=float,
    default=0.97,
    show_default=True,
    help="Share of the information the recommended row must keep.",
)
@click.option(
    "--temperature", type=float, default=20.0, show_default=True, help="Temperature of --min-fidelity."
)
@click.option(
    "--views",
    type=click.Choice(["stored", "drawn"]),
    help="Keep views in files or leave them to be drawn.  [default: as POOL does]",
)
@click.option("--apply", "out", type=click.Path(), metavar="OUT", help="Write the recommended pool.")
@click.option(
    "--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Processes of --apply."
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Which rows are sampled."
)
@click.option("--force", is_flag=True, help="Accept a pool whose labels a lossy codec has changed already.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(
    pool: str, budget: tuple[float, str], images: str | None, out: str | None, as_json: bool, **options: Any
) -> None:
    """Say how POOL can fit a budget: prune ratio x codec, with what is kept.

    For every codec setting the table has the smallest prune ratio that fits, whole pool counted:
    labels, views, codec tables, image table. The recommended row has the most views per image among
    those that keep enough of each label; --apply prunes and encodes accordingly. A training temperature
    that falls over the epochs (train --temperature-schedule) needs labels kept at all of them: look at
    every "kept" column. Full logits and klt serve every temperature, top-k only low ones.

    \b
    Examples:
      lpld-labels plan pool --budget 300MB
      lpld-labels plan pool --budget 1.0x-images --images syn/     fewer labels than images?
      lpld-labels plan pool --budget 30MB --codec klt --codec topk:50
      lpld-labels plan pool --budget 300MB --apply small --jobs 4
    """
    if budget[1] == "images" and images is None:
        raise click.UsageError("a budget in x-images needs --images DIR")
    if not options["temperature"] > 0:
        raise click.BadParameter("expected a number > 0", param_hint="--temperature")
    if not 0 < options["min_fidelity"] < 1:
        raise click.BadParameter("expected a number between 0 and 1", param_hint="--min-fidelity")

    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.rewriting.engine import require_possible
    from lpld_labels.rewriting.plan import image_bytes, plan_budget

    with PoolReader(pool, view_cache_bytes=0) as reader:
        if out is not None:
            require_possible(out, reader)
        image_size = None if images is None else image_bytes(images, reader.images)
        limit = int(budget[0] * (image_size or 0) if budget[1] == "images" else budget[0])
        with progress_bar("trying codecs") as progress:
            plan = plan_budget(
                reader,
                limit,
                codecs=options["codecs"],
                minimum=options["min_fidelity"],
                temperature=options["temperature"],
                seed=options["seed"],
                views=options["views"],
                force=options["force"],
                progress=progress,
            )
        facts = _facts(reader, plan, image_size)
        if not as_json:
            _show(facts, plan)
        if out is not None:
            facts["applied"] = _apply(
                reader, out, plan, views=options["views"], jobs=options["jobs"], force=options["force"]
            )
            if not as_json:
                _show_applied(facts["applied"])
    if as_json:
        print_json(facts)


def _facts(reader: PoolReader, plan: BudgetPlan, image_size: int | None) -> dict[str, Any]:
    """Return the plan as JSON values."""
    from lpld_labels.pool.sizes import pool_bytes

    counts = reader.manifest.counts
    return {
        "pool": reader.location,
        "budget": plan.budget,
        "bytes": {"pool": pool_bytes(reader.manifest), "images": image_size},
        "views_per_image": round(counts.rows / max(counts.images, 1), 3),
        "min_fidelity": plan.minimum,
        "temperature": plan.temperature,
        "rows": [row.as_json() for row in plan.rows],
        "recommended": plan.recommended.as_json(),
    }


def _show(facts: dict[str, Any], plan: BudgetPlan) -> None:
    from rich.table import Table

    weight = f"{human_bytes(facts['bytes']['pool'])}, {facts['views_per_image']:g} views per image"
    table = Table(
        title=f"{facts['pool']} ({weight}) within {human_bytes(facts['budget'])}", title_justify="left"
    )
    temperatures = list(plan.rows[0].fidelity.kept)
    table.add_column("")
    table.add_column("codec")
    for name in (
        "prune",
        "bytes",
        "per row",
        "views/image",
        *(f"kept T={t:g}" for t in temperatures),
        "top-1",
    ):
        table.add_column(name, justify="right")
    for row in plan.rows:
        table.add_row(
            "->" if row.recommended else "",
            row.codec,
            "none" if row.whole else f"{row.ratio:.4g}x",
            human_bytes(row.bytes),
            f"{row.bytes / row.rows:.0f}",
            f"{row.views_per_image:.3g}",
            *(f"{row.fidelity.kept[t]:.4f}" for t in temperatures),
            f"{row.fidelity.top1:.3f}",
            style="bold" if row.recommended else None,
        )
    console = output()
    console.print(table)
    chosen = plan.recommended
    ratio = "" if chosen.whole else f"prune {chosen.ratio:.4g}x, "
    console.print(f"-> {ratio}{chosen.codec}: {chosen.reason}")
    if chosen.keep_partial and not chosen.whole:
        console.print("no batch of the pool is complete, so incomplete ones are kept (prune --keep-partial)")


def _apply(
    reader: PoolReader, out: str, plan: BudgetPlan, *, views: Views | None, jobs: int, force: bool
) -> dict[str, Any]:
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.rewriting.plan_apply import apply_row

    with progress_bar("encoding batches") as progress:
        applied = apply_row(
            reader,
            out,
            plan.recommended,
            budget=plan.budget,
            views=views,
            jobs=jobs,
            force=force,
            progress=progress,
        )
    return {
        "out": out,
        "bytes": pool_bytes(applied.manifest),
        "batches": applied.batches,
        "fidelity": applied.fidelity.as_json(),
        "content_digest": applied.manifest.content_digest,
    }


def _show_applied(facts: dict[str, Any]) -> None:
    kept = ", ".join(f"{value:.4f} at T = {t}" for t, value in facts["fidelity"]["kept"].items())
    talk().print(
        f"written {facts['out']}: {facts['batches']} batches, {human_bytes(facts['bytes'])}, kept {kept}"
    )
