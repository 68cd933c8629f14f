"""Pools whose batch index, image table or views are wrong."""

from typing import Any

import pyarrow as pa

from tests.golden.crafting.cases import (
    Change,
    Stage,
    case,
    column,
    every,
    file,
    first,
    flipped,
    in_order,
    register,
    table,
)
from tests.golden.crafting.crafted import Crafted


def _values(
    role: str, *rows: tuple[str, str, str, int, object], base: str = "f16-plain", stage: Stage = "open"
) -> None:
    """Register a case for each (name, reason, column, row, value)."""
    for name, reason, *where in rows:
        register((f"{role}-{name}", reason, _setter(role, *where)), base=base, stage=stage)


def _setter(role: str, name: str, row: int, value: object) -> Change:
    def edit(values: list[Any]) -> None:
        assert values[row] != value, "a case must change something"
        values[row] = value

    def change(pool: Crafted) -> None:
        pool.change(role, name, edit)
        if role == "views":
            pool.sign_batches()
        elif pool.signable:
            pool.sign_content()

    return change


_values(
    "batches",
    ("epoch-negative", "an epoch below 0", "epoch", 0, -1),
    ("out-of-order", "the first key is larger than the second", "epoch", 0, 1000),
    ("rows-0", "a batch of no rows", "rows", 0, 0),
    ("rows-too-many", "more rows than batch_size", "rows", 0, 1000),
    ("shard-negative", "a shard below 0", "shard", 0, -1),
    ("shard-too-large", "a shard that does not exist", "shard", 0, 7),
    ("position", "positions do not count up", "position", 0, 3),
    ("first-row", "the first row is not the sum of rows before", "first_row", 1, 1),
    ("first-row-huge", "a first row of 2^62", "first_row", 1, 2**62),
    ("group-offset", "payload pages beyond the end of the file", "group_offset", 0, 2**40),
    ("group-offset-negative", "payload pages before the file", "group_offset", 0, -5),
    ("group-bytes", "payload pages of no bytes", "group_bytes", 0, 0),
    ("label-bytes", "bytes of labels that do not add up to their row group", "label_bytes", 0, 1),
    ("label-bytes-negative", "labels of fewer than no bytes", "label_bytes", 0, -1),
)
_values(
    "batches",
    ("strength-above-1", "a mix strength above 1", "mix_strength", 0, 1.5),
    ("strength-nan", "a mix strength that is no number", "mix_strength", 0, float("nan")),
    ("strength-null", "a mixed batch without its strength", "mix_strength", 0, None),
    base="f16-drawn",
)
_values(
    "batches",
    ("strength-stored", "a mix strength in the index where views are stored", "mix_strength", 0, 0.5),
    base="cutmix",
)
_values(
    "batches",
    ("strength-unmixed", "a mix strength of a batch that is not mixed", "mix_strength", 0, 0.5),
    base="patches-drawn",
)
_values(
    "batches",
    ("views-digest", "drawn views have another digest", "views_digest", 0, b"\0" * 8),
    ("strength-other", "another mix strength than the one that was drawn", "mix_strength", 0, 0.25),
    ("batch-beyond-epoch", "a batch that the epoch does not have", "batch", -1, 1000),
    base="f16-drawn",
    stage="read",
)
_values(
    "batches",
    ("views-digest-stored", "stored views have another digest", "views_digest", 0, b"\0" * 8),
    stage="read",
)
_values("batches", ("digest", "a batch has another digest", "digest", 0, b"\0" * 16), stage="verify")
_values(
    "images",
    ("number", "images are not numbered 0, 1, 2, ...", "image", 1, 5),
    ("class-negative", "a class below 0", "class", 0, -1),
    ("class-too-large", "a class beyond the last", "class", 0, 2**24),
    ("width-0", "an image of no width", "width", 0, 0),
    ("height-too-large", "an image of 65,536 rows", "height", 0, 65536),
    ("path-climbs", "a path that climbs out of the folder", "path", 0, "../secret.png"),
    ("path-absolute", "an absolute path", "path", 0, "/etc/passwd"),
    ("path-empty", "an empty path", "path", 0, ""),
    ("path-dot", "a path with a '.' part", "path", 0, "a/./b.png"),
    ("path-control", "a newline in a path", "path", 0, "a\n1:path:b"),
    ("path-nul", "NUL in a path", "path", 0, "a\0b.png"),
    ("path-drive", "a drive letter", "path", 0, "c:/b.png"),
    ("path-backslash", "a backslash in a path", "path", 0, "a\\b.png"),
    ("path-reserved", "a name that Windows reserves", "path", 0, "aux/NUL.png"),
    stage="read",
)
_values(
    "views",
    ("image-negative", "an image below 0", "image", 0, -1),
    ("image-too-large", "an image that is not in the table", "image", 0, 10**6),
    ("crop-negative", "a crop that begins above the image", "crop_top", 0, -1),
    ("crop-empty", "a crop of no height", "crop_height", 0, 0),
    ("crop-outside", "a crop wider than its image", "crop_width", 0, 60000),
    ("crop-overflow", "a crop whose end is beyond 32 bits", "crop_left", 0, 2**31 - 1),
    ("slot", "slots do not count up", "slot", 0, 1),
    ("epoch", "a view of an epoch that the index does not place here", "epoch", 0, 77),
    ("batch", "a view of a batch that the index does not place here", "batch", 0, 77),
    stage="read",
)
_values(
    "views",
    ("partner-negative", "a partner below 0", "mix_slot", 0, -1),
    ("partner-too-large", "a partner that is not in the batch", "mix_slot", 0, 10**6),
    ("strength-nan", "a mix strength that is no number", "mix_strength", 0, float("nan")),
    ("strength-differs", "two mix strengths in one batch", "mix_strength", 0, 0.123456),
    ("box-outside", "a mix box beyond the view", "mix_bottom", 0, 60000),
    ("box-differs", "two mix boxes in one batch", "mix_left", 0, 1),
    ("mix-null-in-part", "a batch that is mixed in part", "mix_slot", 0, None),
    base="cutmix",
    stage="read",
)
_values(
    "views",
    ("cutout-outside", "a cut-out box beyond the view", "cutout_right", 0, 60000),
    ("cutout-turned", "a cut-out box whose bottom is above its top", "cutout_bottom", 0, -1),
    ("patches-twice", "a patch order that is no permutation", "patch_order", 0, [0, 0, 1, 2]),
    ("patches-ragged", "patch orders of two lengths in one batch", "patch_order", 0, [0]),
    ("patches-no-square", "a patch order of 3 tiles", "patch_order", 0, [0, 1, 2]),
    base="patches",
    stage="read",
)
register(
    (
        "batches-column-more",
        "the batch index has a column too many",
        table("batches", lambda index: index.append_column("extra", pa.array([0] * len(index), pa.int32()))),
    ),
    (
        "images-count",
        "the image table has fewer rows than counts.images",
        table("images", lambda images: images.slice(0, len(images) - 1)),
    ),
    (
        "views-rows-missing",
        "the views file has fewer rows than the index",
        table("views", lambda views: views.slice(0, len(views) - 1)),
    ),
)
register(
    (
        "images-path-twice",
        "one path twice, in other capitals",
        column("images", "path", lambda paths: paths.__setitem__(1, paths[0].encode().upper().decode())),
    ),
    (
        "views-column-missing",
        "the views file lacks a column",
        table("views", lambda views: views.drop_columns(["flip"])),
    ),
    (
        "views-flip",
        "a view is mirrored that was not labelled so: digests are those of the other",
        column("views", "flip", first(lambda flip: not flip)),
    ),
    (
        "views-page-flipped",
        "a bit of a page is flipped",
        in_order(table("views"), file("views", lambda data: flipped(data, 60))),
    ),
    (
        "views-split-batch",
        "a row group that ends in the middle of a batch",
        table("views", row_group_size=2),
    ),
    stage="read",
)
register(
    (
        "views-strength-minus-zero",
        "a mix strength of -0.0",
        in_order(column("views", "mix_strength", every(-0.0)), Crafted.sign_batches),
    ),
    base="cutmix",
    stage="read",
)
register(
    ("views-no-checksum", "pages of the views file have no CRC", table("views", write_page_checksum=False)),
    ("views-snappy", "the views file is compressed by Snappy", table("views", compression="snappy")),
    (
        "views-byte-stream-split",
        "an encoding that is not listed",
        table("views", use_dictionary=False, column_encoding={"crop_top": "BYTE_STREAM_SPLIT"}),
    ),
    (
        "views-two-pages",
        "a column chunk of several data pages",
        table("views", use_dictionary=False, data_page_size=1, write_batch_size=1),
    ),
    ("views-data-page-v2", "data pages of version 2", table("views", data_page_version="2.0")),
    ("images-path-dictionary", "paths are dictionary encoded", table("images", use_dictionary=["path"])),
    stage="verify",
)


@case("batches-column-nullable", "a column may be null that never is")
def _(pool: Crafted) -> None:
    index = pool.table("batches")
    nullable = index.schema.field("rows").with_nullable(True)
    pool.put("batches", index.set_column(index.schema.get_field_index("rows"), nullable, index["rows"]))


@case("batches-groups-overlap", "two row groups of labels share a byte", base="shards")
def _(pool: Crafted) -> None:
    rows = [row for row in pool.table("batches").to_pylist() if row["shard"] == 0]
    start = rows[0]["group_offset"]
    second = next(row["group_offset"] for row in rows if row["group_offset"] != start)
    end = start + rows[0]["group_bytes"]
    shards = pool.table("batches")["shard"].to_pylist()

    def edit(values: list[Any]) -> None:
        for number, value in enumerate(values):
            if (shards[number], value) == (0, second):
                values[number] = end - 1

    pool.change("batches", "group_offset", edit)


@case("views-footer-noise", "a views file's footer is no Parquet metadata, and signed", stage="read")
def _(pool: Crafted) -> None:
    length = pool.entry("views")["footer_bytes"]
    noise = b"\x15" * (length - 8)
    file("views", lambda data: data[:-length] + noise + data[-8:], signed=False)(pool)
    pool.sign_bytes("views")


def _packed_image(**changes: object) -> Change:
    return column("packed", "image", first(lambda image: {**image, **changes}))


register(
    ("row", "rows of packed images do not count up", column("packed", "row", first(lambda _: 1))),
    (
        "class",
        "a packed image of another class than in the image table",
        column("packed", "class", first(lambda _: 6)),
    ),
    (
        "path",
        "a packed image of another path than in the image table",
        _packed_image(path="class000/x.png"),
    ),
    ("bytes", "a packed image with another digest than in the image table", _packed_image(bytes=b"other")),
    ("empty", "a packed image of no bytes", _packed_image(bytes=b"")),
    ("compressed", "packed images are compressed by Parquet", table("packed", compression="zstd")),
    ("dictionary", "packed images are dictionary encoded", table("packed", use_dictionary=True)),
    ("no-checksum", "pages of packed images have no CRC", table("packed", write_page_checksum=False)),
    (
        "digest-null",
        "a packed image whose digest the image table does not know",
        in_order(column("images", "digest", first(lambda _: None)), Crafted.sign_content),
    ),
    base="packed",
    stage="verify",
    prefix="packed-",
)


@case("packed-in-part", "a pool that carries some of its images", base="packed")
def _(pool: Crafted) -> None:
    entry = pool.entry("packed", 1)
    pool.manifest["files"].remove(entry)
    del pool.files[entry["path"]]
    pool.sign()


@case("images-path-not-utf8", "a path that is no UTF-8", stage="read")
def _(pool: Crafted) -> None:
    images = pool.table("images")
    paths = [str(path).encode() for path in images["path"].to_pylist()]
    paths[0] = b"\xed\xa0\x80.png"
    field = images.schema.field("path")
    column: Any = pa.array(paths, pa.binary()).view(pa.string())
    pool.put("images", images.set_column(images.schema.get_field_index("path"), field, column))
