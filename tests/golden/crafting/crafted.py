"""A pool as a handful of files in memory, to be changed and signed again."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.golden.crafting import signing

PAYLOAD_SETTINGS: dict[str, Any] = {
    "compression": "none",
    "use_dictionary": False,
    "data_page_size": 1 << 30,
    "write_page_checksum": True,
}
TABLE_SETTINGS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}
_SETTINGS: dict[str, dict[str, Any]] = {
    "labels": PAYLOAD_SETTINGS,
    "packed": PAYLOAD_SETTINGS,
    # Byte strings have no dictionary.
    "images": TABLE_SETTINGS | {"use_dictionary": ["class", "width", "height"]},
}


class Crafted:
    """The files of one pool. `manifest` is the parsed pool.json; `text` replaces it where it is no JSON."""

    def __init__(self, source: Path) -> None:
        self.files = {
            path.relative_to(source).as_posix(): path.read_bytes()
            for path in sorted(source.rglob("*"))
            if path.is_file() and path.name != "pool.json"
        }
        self.manifest: dict[str, Any] = json.loads((source / "pool.json").read_text())
        self.text: bytes | None = None
        self.links: dict[str, str] = {}

    def path(self, role: str, number: int = 0) -> str:
        """Return the path of the n-th file of a role."""
        return str([entry["path"] for entry in self.manifest["files"] if entry["role"] == role][number])

    def entry(self, role: str, number: int = 0) -> dict[str, Any]:
        """Return what the manifest says of the n-th file of a role."""
        entry: dict[str, Any] = [e for e in self.manifest["files"] if e["role"] == role][number]
        return entry

    def table(self, role: str) -> pa.Table:
        """Return a file as a table."""
        return pq.read_table(io.BytesIO(self.files[self.path(role)]))

    def change(self, role: str, column: str, edit: Callable[[list[Any]], None]) -> None:
        """Change a column's values in place and write the file again, everything else named correctly."""
        values = self.table(role)[column].to_pylist()
        edit(values)
        self.put_column(role, column, values)

    def put_column(self, role: str, column: str, values: list[Any]) -> None:
        table = self.table(role)
        place = table.schema.get_field_index(column)
        field = table.schema.field(column)
        self.put(role, table.set_column(place, field, pa.array(values, field.type)))

    def put(self, role: str, table: pa.Table, **settings: Any) -> None:
        """Write a table as a file of the pool."""
        sink = io.BytesIO()
        base = _SETTINGS.get(role, TABLE_SETTINGS)
        pq.write_table(table, sink, **(base | settings))
        self.files[self.path(role)] = sink.getvalue()
        self.sign()

    def sign(self) -> None:
        """Name all files correctly: sizes, digests, footers, rows, the index's name, components."""
        for entry in self.manifest["files"]:
            data = self.files.get(entry["path"])
            if data is not None:
                self._sign_entry(entry, data)
                if entry["role"] != "codec":
                    entry["rows"] = pq.read_metadata(io.BytesIO(data)).num_rows
        self.name_index()
        self._weigh()

    def sign_bytes(self, role: str) -> None:
        """Name one file correctly, whatever it holds; rows and components stay."""
        self._sign_entry(self.entry(role), self.files[self.path(role)])

    def _sign_entry(self, entry: dict[str, Any], data: bytes) -> None:
        entry["bytes"] = len(data)
        entry["digest"] = hashlib.sha256(data).hexdigest()
        if entry["role"] != "codec":
            length = int.from_bytes(data[-8:-4], "little") + 8
            entry["footer_bytes"] = length
            entry["footer_digest"] = hashlib.sha256(data[-length:]).hexdigest()

    def name_index(self) -> None:
        """Give the batch index the name that its digest demands."""
        entry = self.entry("batches")
        data = self.files.pop(entry["path"])
        entry["path"] = f"batches-{entry['digest'][:8]}.parquet"
        self.files[entry["path"]] = data

    def _weigh(self) -> None:
        entries = self.manifest["files"]
        held = [
            (entry["role"], self.files[entry["path"]]) for entry in entries if entry["path"] in self.files
        ]
        self.manifest["components"] = signing.components(held)

    def sign_batches(self) -> None:
        """Sign digests of views and labels, and the content, too; for codecs of one row per view."""
        index = signing.signed_index(
            self.table("batches"),
            self.manifest["codec"]["name"],
            self.table("views").to_pylist(),
            self.table("labels").to_pylist(),
        )
        self.put("batches", index)
        tables = self.table("images"), self.table("batches")
        self.manifest["content_digest"] = signing.content_digest(self.manifest, *tables)

    def save(self, target: Path) -> None:
        """Write the pool to a directory."""
        shutil.rmtree(target, ignore_errors=True)
        for path, data in self.files.items():
            place = target / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        for path, destination in self.links.items():
            place = target / path
            place.unlink(missing_ok=True)
            place.symlink_to(destination)
        if self.text != b"":
            text = self.text or (json.dumps(self.manifest, indent=1, sort_keys=True) + "\n").encode()
            (target / "pool.json").write_bytes(text)


def place_groups(pool: Crafted) -> None:
    """Write the places of payload pages, all in one row group, into the index."""
    group = pq.read_metadata(io.BytesIO(pool.files[pool.path("labels")])).row_group(0)
    chunks = [group.column(number) for number in range(group.num_columns)]
    payload = [c for c in chunks if c.path_in_schema not in ("epoch", "batch", "slot")]
    first = payload[0]
    start = (first.dictionary_page_offset if first.has_dictionary_page else None) or first.data_page_offset
    size = sum(chunk.total_compressed_size for chunk in payload)
    batches = len(pool.table("batches"))
    for column, values in {
        "group_offset": [start] * batches,
        "group_bytes": [size] * batches,
        "label_bytes": [size] + [0] * (batches - 1),
    }.items():
        pool.put_column("batches", column, values)
