"""SPEC.md and the code say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from lpld_labels import PoolReader
from lpld_labels.codecs import CODECS, Codec, codec_named
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.format import schema
from lpld_labels.format.files import FILE_ROLES, Counts, Coverage, FileEntry
from lpld_labels.format.manifest import Augmentation, Manifest, PoolHeader, Teacher

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
SPEC = (Path(schema.__file__).parents[1] / "SPEC.md").read_text()


def section(title: str) -> str:
    """Return the text of a section."""
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


def test_nested_fields_and_roles() -> None:
    text = section("Manifest `pool.json`")
    for kind in (Augmentation, Counts, Coverage, FileEntry, Teacher):
        for field in fields(kind):
            assert f"`{field.name}`" in text, f"{kind.__name__}.{field.name} is not in SPEC.md"
    for role in FILE_ROLES:
        assert f"`{role}`" in section("Directory")
    for kind_name in schema.LABEL_KINDS:
        assert f"`{kind_name}`" in text


def test_names_and_limits() -> None:
    assert f"version {schema.FORMAT_VERSION}" in SPEC.splitlines()[0]
    for name in (
        schema.MANIFEST_FILE,
        schema.IMAGES_FILE,
        f"{schema.VIEWS_DIRECTORY}/NAME.parquet",
        f"{schema.LABELS_DIRECTORY}/NAME.parquet",
        f"{schema.CODEC_DIRECTORY}/NAME",
        f"{schema.STAGING_DIRECTORY}/",
    ):
        assert f"`{name}`" in section("Directory")
    assert f"{schema.VIEW_ROWS_PER_GROUP} rows" in section("Order and row groups")
    assert f"{schema.LABEL_BYTES_PER_GROUP} payload bytes" in section("Order and row groups").replace(
        "\n  ", " "
    )


def test_components() -> None:
    text = section("Bytes and components")
    for component in schema.COMPONENTS:
        assert f"`{component}`" in text


def test_every_codec_is_specified() -> None:
    described = set(re.findall(r"[Cc]odec `(\w+)`", "\n".join(re.findall(r"^### .*$", SPEC, re.MULTILINE))))
    assert described == set(CODECS)


def codecs() -> list[Codec]:
    """Return every codec in every layout, the fitted one from its golden pool."""
    fitted = PoolReader(GOLDEN / "klt").codec
    spelled = [
        codec_named(name)
        for kind in CODECS.values()
        if not kind.demands and kind.name != TopKCodec.name
        for name in kind.spellings or (kind.name,)
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
