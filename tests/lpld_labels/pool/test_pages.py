"""The short way to list values: used when it is safe, and never trusted blindly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lpld_labels.errors import PoolCorruptError
from lpld_labels.pool.pages import find_plain_page

ROWS, WIDTH = 40, 30
VALUES = np.random.default_rng(0).normal(size=(ROWS, WIDTH)).astype(np.float16)


def write(path: Path, **options: Any) -> Path:
    column = pa.array(list(VALUES), pa.list_(pa.field("element", pa.float16(), nullable=False)))
    schema = pa.schema([pa.field("labels", column.type, nullable=False)])
    settings = {"compression": "none", "use_dictionary": False, "write_page_checksum": True, **options}
    pq.write_table(pa.table([column], schema=schema), path, **settings)
    return path


def read(path: Path) -> pa.Buffer | None:
    chunk = pq.read_metadata(path).row_group(0).column(0)
    file = pa.memory_map(str(path))
    page = find_plain_page(file, chunk, count=ROWS * WIDTH, width=2)
    return None if page is None else page.values(file, where=path.name)


def test_it_finds_the_values(tmp_path: Path) -> None:
    found = read(write(tmp_path / "file"))
    assert found is not None
    np.testing.assert_array_equal(np.frombuffer(found, np.float16).reshape(ROWS, WIDTH), VALUES)


@pytest.mark.parametrize(
    "options",
    [
        {"compression": "zstd"},
        {"use_dictionary": True},
        {"data_page_size": 100, "write_batch_size": 1},
        {"data_page_version": "2.0"},
        {"column_encoding": {"labels.list.element": "BYTE_STREAM_SPLIT"}},
    ],
)
def test_it_leaves_other_layouts_alone(tmp_path: Path, options: dict[str, Any]) -> None:
    assert read(write(tmp_path / "file", **options)) is None


def test_it_checks_the_page(tmp_path: Path) -> None:
    path = write(tmp_path / "file")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(PoolCorruptError, match="checksum"):
        read(path)


def test_damaged_headers_are_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path / "file")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    good = path.read_bytes()
    for place in range(40):
        data = bytearray(good)
        data[chunk.data_page_offset + place] ^= 0x11
        other = tmp_path / f"file{place}"
        other.write_bytes(data)
        try:
            found = read(other)
        except PoolCorruptError:
            continue
        if found is not None:
            np.testing.assert_array_equal(np.frombuffer(found, np.float16).reshape(ROWS, WIDTH), VALUES)


def test_headers_nested_without_end_are_not_believed(tmp_path: Path) -> None:
    path = write(tmp_path / "file")
    chunk = pq.read_metadata(path).row_group(0).column(0)
    data = bytearray(path.read_bytes())
    # Each of these bytes begins a struct within a struct.
    data[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = (
        b"\x1c" * chunk.total_compressed_size
    )
    path.write_bytes(data)
    assert read(path) is None
