from pathlib import Path

from lpld_labels import PoolReader, PoolWriter
from lpld_labels.codecs import codec_named
from tests.factories import make_batches, make_header, make_images
from tests.servers.s3 import S3Server


def small_pool(
    path: Path, *, codec: str = "f16", epochs: int = 3, shards: int = 2, classes: int = 10, rows: int = 8
) -> Path:
    """Write a pool of some shards, four batches an epoch, and return its path."""
    header, images = make_header(classes, rows), make_images(classes=10)
    batches = make_batches(epochs=epochs, per_epoch=4, images=images, classes=classes, rows=rows)
    size = max(1, sum(batch.labels.nbytes for batch in batches) // shards - 1)
    with PoolWriter(path, header=header, images=images, codec=codec_named(codec), shard_bytes=size) as writer:
        writer.extend(batches)
        writer.commit()
    return path


def put_pool(server: S3Server, bucket: str, folder: Path, name: str = "pools/small") -> str:
    server.put_folder(bucket.removeprefix("s3://"), name, folder)
    return f"{bucket}/{name}"


def content(location: object) -> list[tuple[object, bytes, bytes]]:
    """Return every batch of a pool: key, views' images, labels."""
    with PoolReader(str(location)) as pool:
        return [(batch.key, batch.images.tobytes(), batch.labels.tobytes()) for batch in pool]
