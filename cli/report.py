"""``lpld-labels report``: one page that shows what a pool holds."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import click

from .common_options import FILE, FOLDER, json_option, pool_argument, quiet
from .console import command_line, human_bytes, print_json
from .page_options import GreedyCommand, read_class_names, runs_option
from .progress import progress_bar


@click.command("report", cls=GreedyCommand)
@pool_argument
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The HTML file.")
@click.option(
    "--images",
    type=FOLDER,
    help="The labelled image folder, for pictures; not needed if POOL carries its images.",
)
@click.option(
    "--against",
    type=click.Path(file_okay=False),
    metavar="POOL",
    help="The pool it was encoded from: shows what was lost.",
)
@click.option("--class-names", type=FILE, help="Names of the classes, one a line, in class order.")
@runs_option
@json_option("text")
def command(
    pool: str,
    out: Path,
    images: Path | None,
    against: str | None,
    class_names: Path | None,
    runs: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Show what POOL is, weighs and holds, and what is odd about it, as one HTML file.

    The file needs no network and no server; open it from disk. A pool of any size takes seconds: labels are
    looked at in a random sample, and the page says over how many rows each chart was taken. With images it
    shows views as the student sees them; torch is not needed.

    \b
    Examples:
      lpld-labels report pools/in1k_40x --images syn/in1k_ipc10 --out report.html
      lpld-labels report pools/klt --against pools/f16 --images syn --out klt.html
      lpld-labels report pools/in1k_40x --out report.html --runs runs/seed0 runs/seed1
    """
    from lpld_labels.inspect.pages.page import require_page_place, save_page
    from lpld_labels.inspect.report.document import make_report, report_page
    from lpld_labels.inspect.report.runs import read_runs
    from lpld_labels.pool.reader import PoolReader

    inputs = [str(given) for given in (pool, images, against, *runs) if given is not None]
    require_page_place(out, *inputs)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(PoolReader(pool))
        other = None if against is None else stack.enter_context(PoolReader(against))
        progress = stack.enter_context(progress_bar("reading a sample"))
        report = make_report(
            reader,
            images=images,
            against=other,
            runs=read_runs(runs),
            names=None if class_names is None else read_class_names(class_names),
            command=command_line("report"),
            progress=progress,
        )
    data = report_page(report)
    save_page(out, data)
    if as_json:
        found: dict[str, Any] = {"page": str(out), "bytes": len(data), "odd": list(report.odd)}
        found |= {"views": len(report.shown), "rows_looked_at": len(report.sample.rows)}
        fidelity = report.sample.fidelity
        print_json(found | {"fidelity": None if fidelity is None else fidelity.as_json()})
        return
    for text in () if quiet() else report.odd:
        click.echo(f"odd: {text}", err=True)
    click.echo(f"{out}: {human_bytes(len(data))}, {len(report.shown)} views shown")
