"""``lpld-labels card``: write a pool's README.md."""

from __future__ import annotations

from pathlib import Path, PurePath

import click

from .common_options import json_option, overwrite_option, pool_argument, quiet
from .console import human_bytes, print_json
from .parameters import TEXT


@click.command("card")
@pool_argument
@click.option(
    "--license",
    "licence",
    type=TEXT,
    metavar="NAME",
    help="As Hugging Face spells it: cc-by-4.0, mit, other ...",
)
@click.option("--name", type=TEXT, help="What to call the pool  [default: its directory's name].")
@click.option(
    "--out",
    type=click.Path(allow_dash=True),
    metavar="FILE",
    help="Write here instead of POOL/README.md; - for standard output.",
)
@overwrite_option
@json_option("text")
def command(
    pool: str, licence: str | None, name: str | None, out: str | None, overwrite: bool, as_json: bool
) -> None:
    """Write README.md into POOL: what it is, how it was made, how to load and verify it.

    The Hugging Face hub shows it as the data set's card, and `datasets.load_dataset(POOL, "views")` and
    "images" find their files by it. Recipe, teachers, digests, bytes and fidelity come from the manifest. The
    card is no part of the pool: its digests do not cover it, and an edited one is only replaced with
    --overwrite.

    \b
    Examples:
      lpld-labels card pools/in1k_40x --license cc-by-4.0
      lpld-labels card pools/in1k_40x --name "ImageNet-1K, IPC 10, LPLD 40x" --overwrite
      lpld-labels card pools/in1k_40x --out - | less
      lpld-labels card s3://bucket/pools/in1k_40x --license cc-by-4.0
    """
    from lpld_labels.format.schema import README_FILE
    from lpld_labels.inspect.card import CardSettings, card_text, class_folders
    from lpld_labels.io.addresses import is_address, shown
    from lpld_labels.io.remote import RemoteStore
    from lpld_labels.pool.card_file import send_card, signed, write_card
    from lpld_labels.pool.reader import PoolReader

    with PoolReader(pool) as reader:
        settings = CardSettings(
            name=name or PurePath(shown(pool).partition("?")[0]).name or "pool",
            license=licence,
            classes=class_folders(reader.images),
        )
        text = signed(card_text(reader.manifest, settings))
    if out == "-":
        click.echo(text, nl=False)
        return
    data = text.encode()
    if out is None and is_address(pool):
        store = RemoteStore(pool)
        where, written = store.at(README_FILE), send_card(store, data, overwrite=overwrite)
    else:
        path = Path(out) if out is not None else Path(pool, README_FILE)
        where, written = str(path), write_card(path, data, overwrite=overwrite)
    if not written and not quiet():
        click.echo(f"{where}: finished before, nothing was left to do", err=True)
    if as_json:
        print_json({"pool": shown(pool), "card": where, "bytes": len(data), "written": written})
        return
    click.echo(f"{where}: {human_bytes(len(data))}")
