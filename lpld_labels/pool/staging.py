"""The staging area: where unfinished pools wait, safe against crashes, shared by several writers.

pool/staging/
  plan.json        header, codec and images of the pool to be; every writer must agree with it
  codec/           the codec's tables
  NAME/            sealed shards (see shard.py); a name starting with .tmp- was never sealed
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lpld_labels.codecs import Codec, restore_codec
from lpld_labels.errors import PoolCorruptError, StagingMismatchError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.manifest import CodecEntry, PoolHeader, from_json, to_json
from lpld_labels.format.schema import CODEC_DIRECTORY, LABELS_DIRECTORY, STAGING_DIRECTORY, VIEWS_DIRECTORY
from lpld_labels.pool.shard import LABELS, SEAL, VIEWS, SealedShard, load_sealed
from lpld_labels.pool.storage import move, write_atomically, write_errors

PLAN = "plan.json"


class StagingArea:
    """The staging directory of one pool."""

    def __init__(self, pool: Path) -> None:
        self.pool = pool
        self.directory = pool / STAGING_DIRECTORY

    def prepare(self, header: PoolHeader, codec: Codec, images: ImageTable) -> None:
        """Create the area, or join the one that is there if it is for the same pool."""
        plan = describe(header, codec, images.digest())
        with write_errors(self.directory):
            (self.directory / CODEC_DIRECTORY).mkdir(parents=True, exist_ok=True)
        path = self.directory / PLAN
        if path.exists():
            require_same_plan(from_json(path.read_bytes(), where=str(path)), plan, where=str(path))
            return
        for name, data in codec.tables().items():
            write_atomically(self.directory / CODEC_DIRECTORY / name, data)
        write_atomically(path, to_json(plan))

    def codec(self) -> Codec | None:
        """Return the codec staged shards are encoded with, or None if nothing is staged."""
        path = self.directory / PLAN
        if not path.exists():
            return None
        document = from_json(path.read_bytes(), where=str(path))
        entry = CodecEntry.parse(FieldReader(document["codec"], where=str(path), prefix="codec."))
        folder = self.directory / CODEC_DIRECTORY
        tables = {file.name: file.read_bytes() for file in sorted(folder.iterdir())}
        return restore_codec(entry, tables, where=str(path))

    def sealed(self) -> list[SealedShard]:
        """Return the sealed shards by name, without those that a merge has replaced."""
        if not self.directory.is_dir():
            return []
        shards = [
            load_sealed(path)
            for path in sorted(self.directory.iterdir())
            if not path.name.startswith(".") and (path / SEAL).exists()
        ]
        replaced = {name for shard in shards for name in shard.replaces}
        return [shard for shard in shards if shard.name not in replaced]

    def publish(self, shard: SealedShard) -> None:
        """Move a sealed shard's files to their place in the pool. Doing it twice does no harm."""
        for file, folder, size in (
            (VIEWS, VIEWS_DIRECTORY, shard.views_bytes),
            (LABELS, LABELS_DIRECTORY, shard.labels_bytes),
        ):
            source = self.directory / shard.name / file
            target = self.pool / folder / f"{shard.name}.parquet"
            with write_errors(target):
                target.parent.mkdir(exist_ok=True)
            if source.exists():
                move(source, target)
            if not target.exists() or target.stat().st_size != size:
                raise PoolCorruptError(
                    "a staged file is missing or damaged",
                    where=target,
                    hint=f"remove {self.directory / shard.name} and run again to redo its batches",
                )

    def discard(self, name: str) -> None:
        """Forget a sealed shard."""
        shutil.rmtree(self.directory / name, ignore_errors=True)

    def remove(self) -> None:
        """Delete the whole area once everything in it is published."""
        with write_errors(self.directory):
            shutil.rmtree(self.directory)


def describe(header: PoolHeader, codec: Codec, images_digest: str) -> dict[str, Any]:
    """Return what two writers of one pool must agree on. Lineage is not part of it."""
    plan = asdict(header)
    del plan["lineage"]
    plan["codec"] = {"name": codec.name, "parameters": codec.parameters()}
    plan["codec_tables"] = {name: bytes_digest(data) for name, data in codec.tables().items()}
    plan["images_digest"] = images_digest
    parsed: dict[str, Any] = from_json(to_json(plan), where="plan")
    return parsed


def require_same_plan(found: dict[str, Any], wanted: dict[str, Any], *, where: str) -> None:
    """Raise StagingMismatchError naming the first field in which the two differ."""
    for field, expected in _flat(found).items():
        got = _flat(wanted).get(field)
        if got != expected:
            raise StagingMismatchError(
                f"this is another pool: field '{field}' differs",
                where=where,
                expected=repr(expected),
                got=repr(got),
                hint=f"finish it with its own settings, choose another path, or delete {Path(where).parent}",
            )


def _flat(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
