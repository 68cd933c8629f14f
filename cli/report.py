"""``lpld-labels report``: an HTML report on a pool, or a comparison of several pools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lpld_labels.inspect.text import human_bytes
from lpld_labels.pool.pool_files import manifest_of
from lpld_labels.verbs import Reported, report

from .console import note, print_json, stdout_console
from .options import verb_command
from .recipe import recipe

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.inspect.compare import ComparedPool, Comparison


@verb_command("report", report, types={"out": click.Path(path_type=Path, dir_okay=False)})
def command(pools: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """\b
    Examples:
      lpld-labels report pools/in1k_40x --images syn/in1k_ipc10 --out report.html
      lpld-labels report pools/*
      lpld-labels report pools/f16 pools/klt --json | jq .relations
    """
    lines = recipe(manifest_of(pools[0])) if "out" in given else ()
    result = report(pools, recipe=lines, **given)
    if as_json:
        print_json(result.as_json())
    elif isinstance(result, Reported):
        for text in result.warnings:
            note(f"warning: {text}")
        click.echo(f"{result.page}: {human_bytes(result.bytes)}, {result.views} views shown")
    else:
        console = stdout_console()
        console.print(_side_by_side(result))
        for relation in result.relations:
            console.print(relation.text, highlight=False, markup=False)


def _side_by_side(comparison: Comparison) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="Pools side by side", title_justify="left")
    table.add_column("")
    for pool in comparison.pools:
        table.add_column(escape(pool.name), overflow="fold")
    differing = comparison.differing
    for name, values in differing.items():
        short = [value[:12] if name == "content digest" else value for value in values]
        table.add_row(name, *map(escape, short))
    table.add_section()
    table.add_row("bytes", *(human_bytes(pool.summary.total_bytes) for pool in comparison.pools))
    table.add_row("bytes per row", *(f"{pool.summary.bytes_per_row:,.1f}" for pool in comparison.pools))
    table.add_row("kept T=1, 4, 20", *(_kept(pool) for pool in comparison.pools))
    same_top1 = [pool.fidelity and f"{pool.fidelity.top1:.1%}" for pool in comparison.pools]
    table.add_row("same top-1", *(text or "-" for text in same_top1))
    table.caption = f"{len(comparison.settings) - len(differing)} more settings are the same"
    return table


def _kept(pool: ComparedPool) -> str:
    from rich.markup import escape

    if pool.fidelity is None:
        return "-"
    shares = ", ".join(f"{100 * share:.1f} %" for share in pool.fidelity.kept.values())
    return escape(f"{shares} of {pool.measured_by}")
