import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pytest

from lpld_labels import PoolReader
from lpld_labels.codecs import CODECS, Codec, codec_named
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.format import limits, schema
from lpld_labels.format.manifest import (
    FILE_ROLES,
    Augmentation,
    Counts,
    Coverage,
    FileEntry,
    Manifest,
    PoolHeader,
    Teacher,
)
from lpld_labels.render.apply import RESIZERS

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
SPEC = (Path(schema.__file__).parents[1] / "SPEC.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^##+ {re.escape(title)}$(.*?)(?=^##+ |\Z)", SPEC, re.DOTALL | re.MULTILINE)
    assert found, f"SPEC.md has no section '{title}'"
    return found.group(1)


def table(title: str) -> list[list[str]]:
    """Return the rows of the first table of a section, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def in_words(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {kind.value_type}"
    if pa.types.is_fixed_size_binary(kind):
        return f"{kind.byte_width} bytes"
    return {"double": "float64"}.get(str(kind), str(kind))


@pytest.mark.parametrize(
    ("title", "columns"),
    [
        ("Views", schema.VIEW_COLUMNS),
        ("Image table", schema.IMAGE_COLUMNS),
        ("Batch index", schema.BATCH_COLUMNS),
    ],
)
def test_columns(title: str, columns: tuple[schema.Column, ...]) -> None:
    described = [(name.strip("`"), kind, null != "never") for name, kind, _, null in table(title)]
    assert described == [(c.name, in_words(c.type), c.nullable) for c in columns]


def test_manifest_fields() -> None:
    described = {row[0].strip("`") for row in table("Manifest `pool.json`")}
    header = {field.name for field in fields(PoolHeader)}
    rest = {field.name for field in fields(Manifest)} - {"header"}
    assert described == {"format", "format_version"} | header | rest


def test_nested_fields_roles_and_words() -> None:
    text = section("Manifest `pool.json`")
    for kind in (Augmentation, Counts, Coverage, FileEntry, Teacher):
        for field in fields(kind):
            assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name} is not in SPEC.md"
    for role in FILE_ROLES:
        assert f"`{role}`" in section("Directory")
    for kind_name in get_args(schema.LabelKind):
        assert f"`{kind_name}`" in text
    for component in schema.COMPONENTS:
        assert f"`{component}`" in section("Bytes and components")
    assert set(RESIZERS) == set(schema.RESIZE_CODES)
    for name in schema.RESIZE_CODES:
        assert f"`{name}`" in text


def test_names_of_files_and_row_groups() -> None:
    assert f"version {schema.FORMAT_VERSION}" in SPEC.splitlines()[0]
    for name in (
        schema.MANIFEST_FILE,
        schema.IMAGES_FILE,
        f"{schema.VIEWS_DIRECTORY}/NAME.parquet",
        f"{schema.LABELS_DIRECTORY}/NAME.parquet",
        f"{schema.CODEC_DIRECTORY}/NAME",
    ):
        assert f"`{name}`" in section("Directory")
    assert f"{schema.VIEW_ROWS_PER_GROUP} rows" in section("Order and row groups")
    assert f"{schema.LABEL_BYTES_PER_GROUP} payload bytes" in section("Order and row groups").replace(
        "\n  ", " "
    )


def test_every_limit_is_specified() -> None:
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", section("Limits"), re.MULTILINE))
    stated = {
        "bytes of `pool.json`": {"16 MiB": limits.MAX_JSON_BYTES},
        "depth of `pool.json`": {"32": limits.MAX_JSON_DEPTH},
        "files of a pool": {"10^6": limits.MAX_FILES},
        "rows of a file or a pool": {"2^40": limits.MAX_ROWS},
        "classes": {"2^24": limits.MAX_CLASSES},
        "rows of a batch": {"2^16": limits.MAX_BATCH_SIZE},
        "classes x rows of a batch": {"2^25": limits.MAX_BATCH_VALUES},
        "batches": {},
        "images": {"2^31 - 1": limits.MAX_IMAGES, "4 x": limits.MAX_IMAGES_PER_BYTE},
        "bytes of a path of an image": {"4,096": limits.MAX_PATH_BYTES},
        "bytes of a packed image": {"2^28": limits.MAX_IMAGE_FILE_BYTES},
        "pixels on a side of an image or view": {"65,535": limits.MAX_SIDE},
        "tiles on a side of a patch grid": {"15": limits.MAX_PATCH_GRID},
        "basis vectors x classes of `klt`": {"2^26": limits.MAX_BASIS_VALUES},
        "bytes of a footer": {"2^24": limits.MAX_FOOTER_BYTES},
        "rows of a row group": {"2^20": limits.MAX_GROUP_ROWS},
        "values of a list column in a row group of views": {"2^24": limits.MAX_VIEW_VALUES},
        "bytes of a page, decompressed": {
            "2^30": limits.MAX_PAGE_BYTES,
            "+ 16)": limits.PAGE_SPARE_PER_VALUE,
            "+ 1024": limits.PAGE_SPARE_BYTES,
        },
        "bytes of a page header": {"2^16": limits.MAX_HEADER_BYTES},
        "bytes of all columns of a batch index or an image table, decompressed": {
            "2^27": limits.TABLE_SPARE_BYTES,
            "64 x": limits.TABLE_GROWTH,
        },
    }
    assert set(rows) - {"what", "---"} == set(stated)
    for what, values in stated.items():
        for text, value in values.items():
            assert text in rows[what], what
            assert _number(text) == value, what


def _number(text: str) -> int:
    if text.endswith("MiB"):
        return int(text[:-4]) << 20
    plain = re.sub(r"[,+) x]", "", text)
    power = re.fullmatch(r"(\d+)\^(\d+)(?:-(\d+))?", plain)
    return int(plain) if power is None else int(power[1]) ** int(power[2]) - int(power[3] or 0)


def test_every_codec_is_specified() -> None:
    described = set(re.findall(r"[Cc]odec `(\w+)`", "\n".join(re.findall(r"^### .*$", SPEC, re.MULTILINE))))
    assert described == set(CODECS)


def codecs() -> list[Codec]:
    """Return every codec in every layout, the fitted one from its golden pool."""
    fitted = PoolReader(GOLDEN / "klt").codec
    spelled = [
        codec_named(name)
        for kind in CODECS.values()
        if not kind.fitted and kind.name != TopKCodec.name
        for name in kind.specs or (kind.name,)
    ]
    return [*spelled, *(TopKCodec(k=3, value_bits=bits) for bits in (8, 16, 32)), fitted]


@pytest.mark.parametrize("codec", codecs(), ids=lambda c: f"{c.name} {c.parameters()}")
def test_payload_columns_and_parameters_are_named(codec: Codec) -> None:
    headings = [
        line[4:] for line in SPEC.splitlines() if line.startswith("### ") and f"`{codec.name}`" in line
    ]
    text = section(headings[0])
    for column in codec.payload_columns(5):
        generic = re.sub(r"_\d+$", "_k", column.name)
        assert f"`{generic}`" in text
    for name in [*codec.parameters(), *(f"codec/{table}" for table in codec.tables())]:
        assert f"`{name}`" in text
