"""``lpld-labels plan``: the prune ratio and codec that fit a byte budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lpld_labels.inspect.text import human_bytes
from lpld_labels.verbs import Planned, plan

from .console import print_json, says_if_finished, show, stdout_console
from .options import BUDGET, OUT, verb_command

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.transforms.plan import BudgetPlan


@verb_command("plan", plan, types={"budget": BUDGET, "apply": OUT})
def command(pool: str, as_json: bool, apply: str | None = None, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels plan pool --budget 300MB
      lpld-labels plan pool --budget 1x-images --images syn/       fewer labels than images?
      lpld-labels plan pool --budget 30MB --codec klt --codec topk:50
      lpld-labels plan pool --budget 300MB --apply small --jobs 4
    """
    with says_if_finished(apply):
        result = plan(pool, apply=apply, **given)
    if as_json:
        facts = result.as_json()
        print_json({name: value for name, value in facts.items() if name != "applied" or value is not None})
        return
    _show(result)
    if result.applied is not None:
        show(f"Written {apply}", result.applied, as_json=False)


def _show(result: Planned) -> None:
    console = stdout_console()
    weight = f"{human_bytes(result.bytes['pool'] or 0)}, {result.views_per_image:g} views per image"
    title = f"{result.pool} ({weight}) within {human_bytes(result.budget)}"
    # Printed separately, because rich folds a table's title at the table's width.
    console.print(title, style="italic", highlight=False, soft_wrap=True, markup=False)
    console.print(_table(result.plan))
    chosen = result.plan.recommended
    ratio = "" if chosen.pruned is None else f"prune {chosen.ratio:.4g}x, "
    kept = chosen.fidelity.kept[result.temperature]
    reached = "" if chosen.asked is None else f" (asked {chosen.asked:g}, reached {kept:.4f})"
    console.print(f"-> {ratio}{chosen.title}{reached}: {chosen.reason}", highlight=False)


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
