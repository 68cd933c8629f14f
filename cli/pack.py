"""``lpld-labels pack``: put the images into a pool."""

from __future__ import annotations

from pathlib import Path

import click

from lpld_labels.inspect.text import human_bytes

from .common import FOLDER, json_option, out_argument, overwrite_option, pool_argument, says_if_finished
from .console import facts_table, print_json, stdout_console
from .progress import progress_bar


@click.command("pack")
@pool_argument
@out_argument
@click.option("--images", type=FOLDER, help="The labelled image folder; not for a pool that carries its own.")
@overwrite_option
@json_option()
def command(pool: str, out: str, images: Path | None, overwrite: bool, as_json: bool) -> None:
    """Write a pool OUT with the labels of POOL that carries its images too.

    Every image file is compared with the digest that the pool keeps of it and stored as it is, in Parquet
    files that Hugging Face's viewer and `datasets` show as pictures. A pool that carries its images needs no
    image folder: train, verify and report take them out of the pool, unless --images names a folder.
    prune, encode, merge and copy keep them. Labels, digests and lineage stay as they are. Running the same
    command again goes on with an interrupted one. See unpack for the way back, and build --pack.

    \b
    Examples:
      lpld-labels pack pools/in1k_40x pools/in1k_40x_packed --images syn/in1k_ipc10
      lpld-labels train pools/in1k_40x_packed --val imagenet/val
    """
    from lpld_labels.format.schema import MANIFEST_FILE
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.pool.sizes import pool_bytes
    from lpld_labels.render.images import find_images
    from lpld_labels.transforms.pack import pack_pool

    with PoolReader(pool) as reader:
        with (
            says_if_finished(Path(out) / MANIFEST_FILE),
            progress_bar("checking images") as check_progress,
            progress_bar("copying bytes") as progress,
            progress_bar("packing images") as image_progress,
        ):
            manifest = pack_pool(
                reader,
                out,
                find_images(reader, images),
                overwrite=overwrite,
                check_progress=check_progress,
                progress=progress,
                image_progress=image_progress,
            )
        before = pool_bytes(reader.manifest)
    inside = manifest.components["packed"]
    if as_json:
        print_json(
            {
                "pool": pool,
                "out": out,
                "images": manifest.counts.images,
                "image_bytes": inside,
                "bytes_before": before,
                "bytes": pool_bytes(manifest),
                "content_digest": manifest.content_digest,
            }
        )
        return
    rows = [
        ("pool", f"{pool}, {human_bytes(before)}"),
        ("images", f"{manifest.counts.images}, {human_bytes(inside)}"),
        ("written", f"{out}, {human_bytes(pool_bytes(manifest))}"),
        ("content", manifest.content_digest),
    ]
    stdout_console().print(facts_table("Pack", rows))
