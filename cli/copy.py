"""``lpld-labels copy``: copy pools between places, merge them, add or extract their images."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from .console import says_if_finished, show
from .options import FOLDER, json_option, out_argument, overwrite_option
from .progress import progress_bar


@click.command("copy")
@click.argument("pools", nargs=-1, required=True, metavar="POOL...", type=click.Path(file_okay=False))
@out_argument
@click.option("--images", type=FOLDER, help="The labelled image folder: OUT then carries its images.")
@click.option("--unpack", is_flag=True, help="Write only the images that POOL carries, to a new folder OUT.")
@overwrite_option
@json_option
def command(
    pools: tuple[str, ...], out: str, images: Path | None, unpack: bool, overwrite: bool, as_json: bool
) -> None:
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
    if unpack:
        if len(pools) > 1 or images is not None or overwrite:
            raise click.UsageError("--unpack takes one POOL and a new folder OUT, and no other options")
        facts = _unpack(pools[0], out)
    else:
        facts = _copy(pools, out, images, overwrite)
    show("Copy", facts, as_json=as_json)


def _copy(pools: tuple[str, ...], out: str, images: Path | None, overwrite: bool) -> dict[str, Any]:
    from lpld_labels.io.addresses import redact
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.transforms.copy import copy_pool

    began = time.monotonic()
    with (
        says_if_finished(out),
        progress_bar("copying") as progress,
        progress_bar("packing images") as image_progress,
    ):
        copied = copy_pool(
            pools, out, images=images, overwrite=overwrite, progress=progress, image_progress=image_progress
        )
    manifest = copied.manifest
    return {
        "pools": [redact(pool) for pool in pools],
        "out": redact(out),
        "batches": manifest.counts.batches,
        "images": manifest.counts.images,
        "bytes": pool_bytes(manifest),
        "image_bytes": manifest.components["packed"],
        "files": copied.files,
        "sent": copied.sent,
        "found": copied.found,
        "content_digest": manifest.content_digest,
        "seconds": round(time.monotonic() - began, 3),
    }


def _unpack(pool: str, folder: str) -> dict[str, Any]:
    from lpld_labels.errors import InvalidArgumentError
    from lpld_labels.pool.packing import packed_images
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.copy import unpack_images
    from lpld_labels.transforms.outputs import require_apart

    require_apart(folder, pool)
    with PoolReader(pool) as reader:
        images = packed_images(reader)
        if images is None:
            raise InvalidArgumentError(
                "the pool does not carry its images",
                where=pool,
                hint="get the image folder it was labelled from; `copy --images` adds images to a pool",
            )
        with says_if_finished(folder, pool=False), progress_bar("writing images") as progress:
            written = unpack_images(images, folder, progress=progress)
    return {"pool": pool, "folder": folder, "images": len(images.table), "written": written}
