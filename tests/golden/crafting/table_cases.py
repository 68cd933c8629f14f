"""Pools whose batch index, image table or views are wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tests.golden.crafting.cases import CASES, Case, Stage, case
from tests.golden.crafting.crafted import Crafted


def _values(
    role: str, *edits: tuple[str, str, str, int, object], base: str = "f16-plain", stage: Stage = "open"
) -> None:
    """Register a case for each (name, reason, column, row, value)."""
    for name, reason, column, row, value in edits:
        CASES.append(
            Case(
                name=f"{role}-{name}",
                base=base,
                stage=stage,
                reason=reason,
                change=_setter(role, column, row, value),
            )
        )


def _setter(role: str, column: str, row: int, value: object) -> Callable[[Crafted], None]:
    def change(pool: Crafted) -> None:
        def edit(values: list[Any]) -> None:
            assert values[row] != value, "a case must change something"
            values[row] = value

        pool.change(role, column, edit)
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
    ("strength-unmixed", "a mix strength of a batch that is not mixed", "mix_strength", 0, 0.5),
    base="cutmix",
)
CASES[-1] = replace(CASES[-1], base="patches-drawn")
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


@case("batches-column-more", "the batch index has a column too many")
def _(pool: Crafted) -> None:
    table = pool.table("batches")
    pool.put("batches", table.append_column("extra", pa.array([0] * table.num_rows, pa.int32())))


@case("batches-column-nullable", "a column may be null that never is")
def _(pool: Crafted) -> None:
    table = pool.table("batches")
    field = table.schema.field("rows").with_nullable(True)
    pool.put("batches", table.set_column(table.schema.get_field_index("rows"), field, table["rows"]))


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


@case("images-path-twice", "one path twice, in other capitals", stage="read")
def _(pool: Crafted) -> None:
    def edit(values: list[Any]) -> None:
        values[1] = values[0].encode().upper().decode()

    pool.change("images", "path", edit)


@case("images-count", "the image table has fewer rows than counts.images")
def _(pool: Crafted) -> None:
    pool.put("images", pool.table("images").slice(0, pool.manifest["counts"]["images"] - 1))


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


@case("views-column-missing", "the views file lacks a column", stage="read")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views").drop_columns(["flip"]))


@case("views-no-checksum", "pages of the views file have no CRC", stage="verify")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views"), write_page_checksum=False)


@case("views-snappy", "the views file is compressed by Snappy", stage="verify")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views"), compression="snappy")


@case("views-byte-stream-split", "an encoding that is not listed", stage="verify")
def _(pool: Crafted) -> None:
    pool.put(
        "views",
        pool.table("views"),
        use_dictionary=False,
        column_encoding={"crop_top": "BYTE_STREAM_SPLIT"},
    )


@case("views-rows-missing", "the views file has fewer rows than the index", stage="open")
def _(pool: Crafted) -> None:
    table = pool.table("views")
    pool.put("views", table.slice(0, table.num_rows - 1))


@case(
    "views-flip", "a view is mirrored that was not labelled so: digests are those of the other", stage="read"
)
def _(pool: Crafted) -> None:
    def edit(values: list[Any]) -> None:
        values[0] = not values[0]

    pool.change("views", "flip", edit)


@case("views-strength-minus-zero", "a mix strength of -0.0", base="cutmix", stage="read")
def _(pool: Crafted) -> None:
    def edit(values: list[Any]) -> None:
        values[:] = [-0.0] * len(values)

    pool.change("views", "mix_strength", edit)
    pool.sign_batches()


@case("views-two-pages", "a column chunk of several data pages", stage="verify")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views"), use_dictionary=False, data_page_size=1, write_batch_size=1)


@case("views-data-page-v2", "data pages of version 2", stage="verify")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views"), data_page_version="2.0")


@case("views-page-flipped", "a bit of a page is flipped", stage="read")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views"))
    data = bytearray(pool.files[pool.path("views")])
    data[60] ^= 16
    pool.files[pool.path("views")] = bytes(data)
    pool.sign()


@case("views-split-batch", "a row group that ends in the middle of a batch", stage="read")
def _(pool: Crafted) -> None:
    pool.put("views", pool.table("views"), row_group_size=2)


@case("batches-groups-overlap", "two row groups of labels share a byte", base="shards")
def _(pool: Crafted) -> None:
    rows = [row for row in pool.table("batches").to_pylist() if row["shard"] == 0]
    first = rows[0]
    second = next(row for row in rows if row["group_offset"] != first["group_offset"])
    place = (0, second["group_offset"])
    shards = pool.table("batches")["shard"].to_pylist()

    def edit(values: list[Any]) -> None:
        end = first["group_offset"] + first["group_bytes"]
        values[:] = [
            end - 1 if (shard, value) == place else value for shard, value in zip(shards, values, strict=True)
        ]

    pool.change("batches", "group_offset", edit)


@case("images-path-dictionary", "paths are dictionary encoded", stage="verify")
def _(pool: Crafted) -> None:
    pool.put("images", pool.table("images"), use_dictionary=["path"])


@case("views-footer-noise", "a views file's footer is no Parquet metadata, and signed", stage="read")
def _(pool: Crafted) -> None:
    data = pool.files[pool.path("views")]
    length = pool.entry("views")["footer_bytes"]
    pool.files[pool.path("views")] = data[:-length] + b"\x15" * (length - 8) + data[-8:]
    pool.sign_bytes("views")


def _packed(name: str, reason: str, column: str, value: object, stage: Stage = "verify") -> None:
    def change(pool: Crafted) -> None:
        def edit(values: list[Any]) -> None:
            values[0] = {**values[0], **value} if isinstance(value, dict) else value

        pool.change("packed", column, edit)

    CASES.append(Case(name=f"packed-{name}", base="packed", stage=stage, reason=reason, change=change))


_packed("row", "rows of packed images do not count up", "row", 1)
_packed("class", "a packed image of another class than in the image table", "class", 6)
_packed("path", "a packed image of another path than in the image table", "image", {"path": "class000/x.png"})
_packed("bytes", "a packed image with another digest than in the image table", "image", {"bytes": b"other"})
_packed("empty", "a packed image of no bytes", "image", {"bytes": b""})


def _packed_settings(name: str, reason: str, **settings: Any) -> None:
    def change(pool: Crafted) -> None:
        pool.put("packed", pool.table("packed"), **settings)

    CASES.append(Case(name=f"packed-{name}", base="packed", stage="verify", reason=reason, change=change))


_packed_settings("compressed", "packed images are compressed by Parquet", compression="zstd")
_packed_settings("dictionary", "packed images are dictionary encoded", use_dictionary=True)
_packed_settings("no-checksum", "pages of packed images have no CRC", write_page_checksum=False)


@case("packed-in-part", "a pool that carries some of its images", base="packed")
def _(pool: Crafted) -> None:
    entry = pool.entry("packed", 1)
    pool.manifest["files"].remove(entry)
    del pool.files[entry["path"]]
    pool.sign()


@case(
    "packed-digest-null",
    "a packed image whose digest the image table does not know",
    base="packed",
    stage="verify",
)
def _(pool: Crafted) -> None:
    def edit(values: list[Any]) -> None:
        values[0] = None

    pool.change("images", "digest", edit)
    pool.sign_content()


@case("images-path-not-utf8", "a path that is no UTF-8", stage="read")
def _(pool: Crafted) -> None:
    table = pool.table("images")
    paths = [str(path).encode() for path in table["path"].to_pylist()]
    paths[0] = b"\xed\xa0\x80.png"
    field = table.schema.field("path")
    column: Any = pa.array(paths, pa.binary()).view(pa.string())
    pool.put("images", table.set_column(table.schema.get_field_index("path"), field, column))
