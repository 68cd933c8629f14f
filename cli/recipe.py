"""``lpld-labels recipe``: the commands that would make a pool again."""

from __future__ import annotations

import click

from .common_options import json_option
from .console import print_json


@click.command("recipe")
@click.argument("pool", type=click.Path())
@click.option("--images", type=click.Path(), help="Image folder to write instead of the word IMAGES.")
@click.option(
    "--teacher-weights",
    "weights",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="Weights to write instead of the word WEIGHTS, one per teacher.",
)
@click.option("--out", type=click.Path(), help="Path to write instead of the word POOL.")
@json_option("lines")
def command(pool: str, images: str | None, weights: tuple[str, ...], out: str | None, as_json: bool) -> None:
    """Print the command lines that would make POOL again.

    They come from the manifest alone, which pool.json holds, so the pool's other files need not be at hand.
    Where images and weights are those that were used (lines that begin with # say how to know them), the
    pool they make has the same content digest, on like hardware and with the same libraries. Random
    pruning of a pool that was just built is left out of the labelling at once (build --ratio).
    `build --like POOL` does all of it in one go.

    \b
    Examples:
      lpld-labels recipe pools/in1k_40x
      lpld-labels recipe pool.json --images syn/in1k_ipc10 --out pools/again | sh
    """
    from lpld_labels.inspect.recipe import Paths, recipe
    from lpld_labels.pool.pool_files import manifest_of

    found = manifest_of(pool)
    paths = Paths(images=images or "IMAGES", weights=weights, out=out or "POOL")
    teachers = len(found.header.teachers)
    if len(weights) not in (0, teachers):
        raise click.UsageError(
            f"give --teacher-weights once per teacher ({teachers} times), got {len(weights)}"
        )
    lines = recipe(found, paths)
    if as_json:
        print_json({"pool": pool, "content_digest": found.content_digest, "lines": lines})
        return
    click.echo("\n".join(lines))
