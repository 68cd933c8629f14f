"""``lpld-labels unpack``: write the image folder of a pool that carries its images."""

from __future__ import annotations

import click

from .common import json_option, overwrite_option, pool_argument, quiet
from .console import print_json, print_line
from .progress import progress_bar


@click.command("unpack")
@pool_argument
@click.argument("folder", type=click.Path())
@overwrite_option
@json_option("text")
def command(pool: str, folder: str, overwrite: bool, as_json: bool) -> None:
    """Write the images that POOL carries to FOLDER, byte for byte as they were packed.

    FOLDER gets one directory per class, as it was labelled, unpack.json, which says whose images they are,
    and unpack.sha256, which lists them. Running the same command again goes on with an interrupted one and
    writes only what is missing or was changed. --overwrite replaces images that were unpacked there and are
    as they were, and refuses where there is anything else.

    \b
    Examples:
      lpld-labels unpack pools/in1k_40x_packed syn/in1k_ipc10
      lpld-labels unpack pools/in1k_40x_packed syn/in1k_ipc10 --overwrite
    """
    from lpld_labels.errors import InvalidArgumentError
    from lpld_labels.pool.packed_images import packed_images
    from lpld_labels.pool.reader import PoolReader
    from lpld_labels.transforms.outputs import require_apart
    from lpld_labels.transforms.unpack import unpack_images

    require_apart(folder, pool)
    with PoolReader(pool) as reader:
        images = packed_images(reader)
        if images is None:
            raise InvalidArgumentError(
                "the pool does not carry its images",
                where=pool,
                hint="ask for the image folder it was labelled from; `pack` puts images in",
            )
        with progress_bar("writing images") as progress:
            written = unpack_images(images, folder, overwrite=overwrite, progress=progress)
    total = len(images.table)
    if not written and not quiet():
        click.echo(f"{folder}: finished before, nothing was left to do", err=True)
    if as_json:
        print_json({"pool": pool, "folder": folder, "images": total, "written": written})
        return
    print_line(f"{folder}: {total} images, {written} written now")
