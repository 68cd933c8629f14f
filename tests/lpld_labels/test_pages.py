"""The short way to payload columns: used when it is safe, and never trusted blindly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpld_labels.errors import PoolCorruptError
from lpld_labels.pages import PageMap
from lpld_labels.schema import Column

ROWS, WIDTH = 40, 30
VALUES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float16)
ELEMENT = pa.field("element", pa.float16(), nullable=False)
COLUMNS: dict[str, pa.Array] = {
    "lists": pa.array(VALUES.tolist(), pa.list_(ELEMENT)),
    "numbers": pa.array(np.arange(ROWS, dtype=np.float32)),
    "codes": pa.array([row.tobytes() for row in VALUES], pa.binary(2 * WIDTH)),
    "blobs": pa.array([b"x" * number for number in range(ROWS)], pa.binary()),
}


def column(name: str, **changes: Any) -> Column:
    return Column(**{"name": name, "type": COLUMNS[name].type, "component": "labels", **changes})


def write(path: Path, *names: str, rows_per_group: int = ROWS, **options: Any) -> Path:
    fields = [pa.field(name, COLUMNS[name].type, nullable=False) for name in names]
    table = pa.table([COLUMNS[name] for name in names], schema=pa.schema(fields))
    settings = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, **options}
    pq.write_table(table, path, row_group_size=rows_per_group, **settings)
    return path


def read(path: Path, *names: str, group: int = 0) -> dict[str, pa.Array] | None:
    pages = PageMap(pq.read_metadata(path), [column(name) for name in names])
    file = pa.memory_map(str(path))
    first = pages.read(file, group, where=path.name)
    # The second time, what was learnt from the page headers is used.
    assert pages.read(file, group, where=path.name) == first
    return first


def flat(name: str) -> pa.Array:
    return COLUMNS[name].flatten() if pa.types.is_list(COLUMNS[name].type) else COLUMNS[name]


@pytest.mark.parametrize("name", COLUMNS)
def test_it_finds_the_values(tmp_path: Path, name: str) -> None:
    found = read(write(tmp_path / "file", name), name)
    assert found == {name: flat(name)}


def test_all_kinds_in_one_file_and_several_groups(tmp_path: Path) -> None:
    path = write(tmp_path / "file", *COLUMNS, rows_per_group=16)
    for group, rows in ((0, slice(0, 16)), (1, slice(16, 32)), (2, slice(32, 40))):
        found = read(path, *COLUMNS, group=group)
        part = {name: values[rows] for name, values in COLUMNS.items() if name != "lists"}
        assert found == {**part, "lists": COLUMNS["lists"][rows].flatten()}
    assert set(read(path, "blobs") or ()) == {"blobs"}


def test_one_byte_string_is_not_copied(tmp_path: Path) -> None:
    path = write(tmp_path / "file", "blobs", rows_per_group=1)
    before = pa.total_allocated_bytes()
    found = read(path, "blobs", group=39)
    assert found == {"blobs": COLUMNS["blobs"][39:]}
    assert pa.total_allocated_bytes() == before


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": True},
        {"data_page_size": 100, "write_batch_size": 1},
        {"data_page_version": "2.0"},
        {"write_page_checksum": False},
    ],
)
def test_it_leaves_other_layouts_alone(tmp_path: Path, name: str, options: dict[str, Any]) -> None:
    assert read(write(tmp_path / "file", name, **options), name) is None


def test_it_leaves_other_encodings_alone(tmp_path: Path) -> None:
    split = {"lists.list.element": "BYTE_STREAM_SPLIT"}
    assert read(write(tmp_path / "file", "lists", column_encoding=split), "lists") is None
    delta = {"blobs": "DELTA_LENGTH_BYTE_ARRAY"}
    assert read(write(tmp_path / "other", "blobs", column_encoding=delta), "blobs") is None


def test_what_it_serves() -> None:
    assert PageMap.serves([column(name) for name in COLUMNS])
    assert not PageMap.serves([column("blobs"), column("numbers", nullable=True)])
    assert not PageMap.serves([column("numbers", type=pa.bool_())])
    assert not PageMap.serves([column("numbers", type=pa.list_(pa.string()))])


@pytest.mark.parametrize("name", COLUMNS)
def test_it_checks_the_page(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "file", name)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(PoolCorruptError, match="checksum"):
        read(path, name)


@pytest.mark.parametrize("name", COLUMNS)
def test_damaged_headers_are_not_believed(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "file", name)
    chunk = pq.read_metadata(path).row_group(0).column(0)
    good = path.read_bytes()
    for place in range(40):
        data = bytearray(good)
        data[chunk.data_page_offset + place] ^= 0x11
        other = tmp_path / f"file{place}"
        other.write_bytes(data)
        try:
            found = read(other, name)
        except PoolCorruptError:
            continue
        assert found in (None, {name: flat(name)})


def test_lengths_that_do_not_fit_are_not_believed(tmp_path: Path) -> None:
    """A page with a right checksum and wrong lengths, as only a faulty writer makes it."""
    path = write(tmp_path / "file", "codes")
    # The same bytes, read as byte strings: their first four would be a length.
    pages = PageMap(pq.read_metadata(path), [Column(name="codes", type=pa.binary(), component="labels")])
    assert pages.read(pa.memory_map(str(path)), 0, where="file") is None
