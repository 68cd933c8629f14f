"""``lpld-labels inspect``: a pool's contents and size, its card, or its recipe."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from lpld_labels.inspect.text import human_bytes

from .console import facts_table, note, print_json, stdout_console, times_smaller
from .options import TEXT, json_option, overwrite_option

if TYPE_CHECKING:
    from rich.table import Table

    from lpld_labels.inspect.summary import PoolSummary

PAPER_NUMBERS = {"crop": 1, "flip": 2, "mix_index": 3, "mix_strength": 4, "mix_box": 5, "labels": 6}
_IN_POOL = ""


@click.command("inspect")
@click.argument("pool", type=click.Path())
@click.option("--recipe", is_flag=True, help="Print the commands that reproduce the pool.")
@click.option(
    "--card",
    type=click.Path(allow_dash=True),
    is_flag=False,
    flag_value=_IN_POOL,
    metavar="[FILE]",
    help="Write the pool's card to POOL/README.md, or to FILE; - for standard output.",
)
@click.option(
    "--license",
    "licence",
    type=TEXT,
    metavar="NAME",
    help="With --card: Hugging Face's name of a licence, e.g. cc-by-4.0, mit, other.",
)
@click.option("--name", type=TEXT, help="With --card: title of the card.  [default: the directory's name]")
@overwrite_option
@json_option
def command(
    pool: str,
    recipe: bool,
    card: str | None,
    licence: str | None,
    name: str | None,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Show a pool's contents and size.

    POOL is a directory, a URI, or just a pool.json file. Only the manifest is read.

    --recipe prints command lines in which capital words stand for paths. With the same images and weights
    (the lines that begin with # identify them), hardware and libraries, they make a pool with the same
    content digest.

    --card writes README.md: what the pool is, how it was made, how to load and verify it. The Hugging Face
    hub shows it as the data set's card, and `datasets.load_dataset(POOL, "views")` needs it to find files. It
    is not part of the pool. An edited card is only replaced with --overwrite.

    \b
    Examples:
      lpld-labels inspect pools/in1k_ipc10
      lpld-labels inspect s3://bucket/pools/in1k_ipc10 --json | jq .bytes.components
      lpld-labels inspect pools/in1k_40x --recipe
      lpld-labels inspect pools/in1k_40x --card --license cc-by-4.0 --name "ImageNet-1K, IPC 10, 40x"
    """
    from lpld_labels.inspect.summary import summarise

    if card is None and (licence or name or overwrite):
        raise click.UsageError("--license, --name and --overwrite require --card")
    if card is not None and recipe:
        raise click.UsageError("give --card or --recipe, not both")
    if card is not None:
        _write_card(pool, card, name=name, licence=licence, overwrite=overwrite, as_json=as_json)
        return
    summary = summarise(pool)
    if recipe:
        from .recipe import recipe as recipe_of

        lines = recipe_of(summary.manifest)
        if as_json:
            print_json({"pool": pool, "content_digest": summary.manifest.content_digest, "lines": lines})
        else:
            click.echo("\n".join(lines))
    elif as_json:
        print_json(summary.as_json())
    else:
        console = stdout_console()
        facts = summary.settings() | {"lineage": _lineage(summary)}
        console.print(facts_table(f"Label pool {summary.location}", facts.items()))
        console.print(_size(summary))


def _write_card(
    pool: str, card: str, *, name: str | None, licence: str | None, overwrite: bool, as_json: bool
) -> None:
    from lpld_labels.format.schema import README_FILE
    from lpld_labels.inspect.card import card_text, class_folders
    from lpld_labels.io.addresses import is_address, redact
    from lpld_labels.io.remote import RemoteStore
    from lpld_labels.pool.own_files import send_card, signed_card, write_card
    from lpld_labels.pool.reader import PoolReader

    from .recipe import recipe

    with PoolReader(pool) as reader:
        title = name or PurePath(redact(pool).partition("?")[0]).name or "pool"
        classes = class_folders(reader.images)
        lines = recipe(reader.manifest)
        text = card_text(reader.manifest, name=title, licence=licence, classes=classes, recipe=lines)
    text = signed_card(text)
    if card == "-":
        click.echo(text, nl=False)
        return
    data = text.encode()
    if card == _IN_POOL and is_address(pool):
        store = RemoteStore(pool)
        where, written = store.at(README_FILE), send_card(store, data, overwrite=overwrite)
    else:
        path = Path(pool, README_FILE) if card == _IN_POOL else Path(card)
        where, written = str(path), write_card(path, data, overwrite=overwrite)
    if not written:
        note(f"{where}: already up to date")
    if as_json:
        print_json({"pool": redact(pool), "card": where, "bytes": len(data), "written": written})
    else:
        click.echo(f"{where}: {human_bytes(len(data))}")


def _lineage(summary: PoolSummary) -> str:
    from lpld_labels.inspect.summary import step_words

    lines = []
    for step in summary.manifest.header.lineage:
        details = ", ".join(f"{name} {value}" for name, value in step_words(step).items())
        parent = f" from {step.parent_digest[:12]}" if step.parent_digest else ""
        lines.append(f"{step.operation}{parent}" + (f" ({details})" if details else ""))
    return "\n".join(lines) or "none recorded"


def _size(summary: PoolSummary) -> Table:
    from rich.table import Table

    from lpld_labels.inspect.summary import COMPONENT_NAMES

    table = Table(title="Bytes on disk", title_justify="left", show_footer=True)
    total, rows = summary.total_bytes, summary.manifest.counts.rows
    table.add_column("component", footer="total")
    table.add_column("size", justify="right", footer=human_bytes(total))
    table.add_column("bytes/row", justify="right", footer=f"{summary.bytes_per_row:.1f}")
    table.add_column("share", justify="right", footer="100 %")
    for component, size in summary.components.items():
        per_row = f"{size / rows:.2f}" if rows else "-"
        label = f"{PAPER_NUMBERS.get(component, ' ')}  {COMPONENT_NAMES[component]}"
        table.add_row(label, human_bytes(size), per_row, f"{100 * size / total:.2f} %")
    table.caption_justify = "left"
    table.caption = (
        f"{times_smaller(summary.fp16_bytes / total)} than plain fp16 logits "
        f"({human_bytes(summary.fp16_bytes)}), {times_smaller(summary.pickle_bytes / total)} than one pickle "
        f"per batch ({human_bytes(summary.pickle_bytes)})"
    )
    return table
