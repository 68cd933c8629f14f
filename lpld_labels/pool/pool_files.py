"""The files of a pool, each proven before it is used: whole ones by their digest, Parquet by its footer."""

from __future__ import annotations

import os

import pyarrow as pa
from pyarrow import fs

from lpld_labels.errors import NotAPoolError, PoolCorruptError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.files import FileEntry
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import MANIFEST_FILE, STAGING_DIRECTORY
from lpld_labels.format.strict_json import MAX_BYTES
from lpld_labels.pool.proven_parquet import ProvenParquet, open_file
from lpld_labels.pool.storage import refuse_links_out, resolve


class PoolFiles:
    """Where a pool's files are, and how to get at them."""

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.system, self.path = resolve(location)

    def at(self, path: str) -> str:
        """Return the place of a file below the pool."""
        return f"{self.path}/{path}"

    def check_sizes(self, manifest: Manifest) -> None:
        """Refuse missing and truncated files, and links out of the pool, before any is read."""
        infos = self.system.get_file_info([self.at(entry.path) for entry in manifest.files])
        for entry, info in zip(manifest.files, infos, strict=True):
            if info.type != fs.FileType.File:
                raise PoolCorruptError("file is missing", where=self.at(entry.path), hint="restore this file")
            if info.size != entry.bytes:
                raise self._wrong_size(entry, info.size)
        if isinstance(self.system, fs.LocalFileSystem):
            refuse_links_out(self.path, [MANIFEST_FILE, *(entry.path for entry in manifest.files)])

    def whole(self, entry: FileEntry) -> bytes:
        """Return a whole file, known to be the one the manifest names."""
        with open_file(self.system, self.at(entry.path)) as stream:
            if stream.size() != entry.bytes:
                raise self._wrong_size(entry, stream.size())
            data: bytes = stream.read()
        if bytes_digest(data) != entry.digest:
            raise PoolCorruptError(
                "file is not the one this pool was written with",
                where=self.at(entry.path),
                expected=f"SHA-256 {entry.digest[:12]}...",
                got=f"{bytes_digest(data)[:12]}...",
                hint="restore this file",
            )
        return data

    def table(self, entry: FileEntry, schema: pa.Schema) -> pa.Table:
        """Return a whole Parquet file, known to be the one the manifest names."""
        data = pa.BufferReader(self.whole(entry))
        return ProvenParquet(data, entry, schema, where=self.at(entry.path)).read_all()

    def open_parquet(self, entry: FileEntry, schema: pa.Schema) -> ProvenParquet:
        """Open a Parquet file, its footer proven."""
        where = self.at(entry.path)
        return ProvenParquet(open_file(self.system, where), entry, schema, where=where)

    def _wrong_size(self, entry: FileEntry, size: int) -> PoolCorruptError:
        return PoolCorruptError(
            "file has the wrong size",
            where=self.at(entry.path),
            expected=f"{entry.bytes} bytes",
            got=size,
            hint="restore this file",
        )


def read_manifest(system: fs.FileSystem, path: str, location: str) -> Manifest:
    """Read and parse pool.json below `path`; `location` is how the caller named the pool."""
    where = f"{path}/{MANIFEST_FILE}"
    try:
        with system.open_input_stream(where) as stream:
            # A byte more than there may be is enough to refuse it.
            text = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        staged = system.get_file_info(f"{path}/{STAGING_DIRECTORY}").type == fs.FileType.Directory
        raise NotAPoolError(
            "not a label pool: no pool.json",
            where=location,
            hint="an unfinished build is staged here: run the same command again to finish it"
            if staged
            else "give the directory that holds pool.json",
        ) from None
    except OSError as error:
        raise NotAPoolError(f"cannot read pool.json: {error}", where=location) from None
    return Manifest.parse(text, where=where)
