"""``lpld-labels copy``: copy pools between places, merge them, add or extract their images."""

from __future__ import annotations

from typing import Any

import click

from lpld_labels.verbs import CopyCall, copy

from .console import says_if_finished, show
from .options import call_options, given_only, json_option, out_argument
from .progress import CommandProgress


@click.command("copy")
@click.argument("pools", nargs=-1, required=True, metavar="POOL...", type=click.Path(file_okay=False))
@out_argument
@call_options(CopyCall)
@json_option
def command(pools: tuple[str, ...], out: str, as_json: bool, **given: Any) -> None:
    """Copy POOL to OUT; both may be directories or addresses (s3://, https:// to read from, and others).

    Files already at OUT with the same digest are not sent again. Every file is verified by its digest on
    arrival, and the manifest is written last. Run the same command again to resume an interrupted copy.

    Several POOLs are merged: OUT has the batches of all, bit for bit. They must have the same images,
    teachers, settings and codec, and no batch in common, like the parts of one labelling run.

    With --images the pool carries its images: every file is verified by its digest and stored unchanged.
    train, verify and report then need no image folder. --unpack writes the folder again.

    \b
    Examples:
      lpld-labels copy pools/in1k s3://bucket/pools/in1k
      lpld-labels copy https://example.org/pools/in1k pools/in1k
      lpld-labels copy share_1 share_2 share_3 whole
      lpld-labels copy pools/in1k_40x pools/in1k_40x_packed --images syn/in1k_ipc10
      lpld-labels copy pools/in1k_40x_packed syn/in1k_ipc10 --unpack
    """
    with says_if_finished(out, pool=not given["unpack"]):
        result = copy(pools, out, progress=CommandProgress(), **given_only(given))
    show("Copy", result.as_json(), as_json=as_json)
