"""Write the Parquet files of a pool, and compute their entries in the manifest."""

from __future__ import annotations

import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.limits import MAX_GROUP_ROWS
from lpld_labels.format.manifest import FileEntry, FileRole
from lpld_labels.format.schema import COMPONENTS, VIEW_COLUMNS, Column, Component

VIEW_OWNERS: Mapping[str, Component] = {column.name: column.component for column in VIEW_COLUMNS}
_ONE_PAGE = 1 << 30
_MAGIC = b"PAR1"
_TAIL = 8  # Bytes after the metadata: its length and the magic number.


@cache
def page_settings() -> dict[str, Any]:
    """Return the Parquet writer settings for all files: one data page per column chunk, with a checksum."""
    settings: dict[str, Any] = {
        "data_page_size": _ONE_PAGE,
        "dictionary_pagesize_limit": _ONE_PAGE,
        "write_page_checksum": True,
        "data_page_version": "1.0",
    }
    # By default, newer releases of Arrow also start a new page after 20,000 rows.
    if "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters:
        settings["max_rows_per_page"] = MAX_GROUP_ROWS
    return settings


def index_file(index: pa.Table) -> bytes:
    """Return a batch index as the bytes of a Parquet file. Integers ascend, so delta encoding suits them."""
    integers = [field.name for field in index.schema if pa.types.is_integer(field.type)]
    return _file(index, use_dictionary=False, column_encoding=dict.fromkeys(integers, "DELTA_BINARY_PACKED"))


def image_file(images: pa.Table) -> bytes:
    """Return an image table as the bytes of a Parquet file."""
    return _file(images, use_dictionary=["class", "width", "height"])


def _file(table: pa.Table, **settings: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        row_group_size=MAX_GROUP_ROWS,
        write_statistics=False,
        **settings,
        **page_settings(),
    )
    return sink.getvalue()


def table_entry(path: str, role: FileRole, data: bytes) -> FileEntry:
    """Return the manifest entry of a Parquet file in memory."""
    return file_entry(path, role, len(data), bytes_digest(data), footer_of(lambda count: data[-count:]))


def file_entry(path: str, role: FileRole, size: int, digest: str, footer: bytes) -> FileEntry:
    """Return the manifest entry of a new Parquet file. size: file size in bytes. digest: SHA-256 in hex."""
    return FileEntry(
        path=path,
        role=role,
        bytes=size,
        rows=footer_metadata(footer).num_rows,
        digest=digest,
        footer_bytes=len(footer),
        footer_digest=bytes_digest(footer),
    )


def footer_of(tail: Callable[[int], bytes]) -> bytes:
    """Return the footer of a Parquet file: metadata, length of the metadata, and magic number.

    tail: returns the last n bytes of the file.
    """
    return tail(int.from_bytes(tail(_TAIL)[:4], "little") + _TAIL)


def footer_metadata(footer: bytes) -> pq.FileMetaData:
    """Parse a footer; the rest of the file is not needed."""
    return pq.read_metadata(pa.BufferReader(_MAGIC + footer))


def label_owners(columns: tuple[Column, ...]) -> dict[str, Component]:
    """Map each column of a labels file to its storage component. columns: payload columns of the file."""
    keys: dict[str, Component] = dict.fromkeys(("epoch", "batch", "slot"), "keys")
    return keys | {column.name: column.component for column in columns}


def column_chunks(footer: bytes) -> Iterator[tuple[str, int]]:
    """Yield (column, compressed size in bytes) per column chunk. footer: footer of a file just written."""
    metadata = footer_metadata(footer)
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for place in range(row_group.num_columns):
            chunk = row_group.column(place)
            yield chunk.path_in_schema.split(".", 1)[0], chunk.total_compressed_size


def component_bytes(
    chunks: Iterable[tuple[str, int]], size: int, owners: Mapping[str, Component]
) -> dict[Component, int]:
    """Sum a file's bytes per component. size: file size. Bytes outside of `chunks` count as container."""
    components: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    for name, weight in chunks:
        components[owners.get(name, "container")] += weight
    components["container"] += size - sum(components.values())
    return components
