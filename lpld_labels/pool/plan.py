"""Plans of a pool and its shards, made before the first batch is written; `run_plan` executes them."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs import Codec
from lpld_labels.errors import (
    InvalidArgumentError,
    InvalidBatchError,
    PoolConflictError,
    StagingMismatchError,
)
from lpld_labels.exec.job import Steps
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Manifest, PoolHeader, require_readable
from lpld_labels.format.records import BatchKey
from lpld_labels.format.schema import SHARD_BATCHES, SHARD_LABEL_BYTES, SHARD_VIEW_ROWS, Views
from lpld_labels.format.views import ViewConstraints, view_constraints
from lpld_labels.pool.packing import ImageCarrier
from lpld_labels.pool.shard import EncodedBatch, Skipped, write_shard
from lpld_labels.pool.unfinished import differences
from lpld_labels.pool.views import require_drawn, require_readable_views


@dataclass(frozen=True)
class Shard:
    """The work for one shard. items: argument for the `BatchSource`. batches: expected number of batches."""

    items: tuple[Any, ...]
    batches: int


class BatchSource(Protocol):
    """Yields the batches of a shard, in any order. Must be picklable.

    A source may have a method `begin(number)`, which returns the source to use in a worker process. Each
    process calls `begin` once, with the worker's number on its machine.
    """

    def __call__(self, items: Sequence[Any], /) -> Iterator[EncodedBatch | Skipped]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolPlan:
    """Plan of a new pool, or of more batches for an existing pool.

    out: local directory of the pool. header: has the complete lineage, including the step of this command.
    views: whether the pool stores its views or readers draw them. shards: all work, in key order.
    settings: settings and input digests of the command as JSON values; part of `identity`.
    base: manifest of the pool at `out` that gets more batches; None for a new pool.
    packed: writes image files into the pool. content_digest: expected digest of the pool, if known.
    most_bytes: larger pools are not published. notes: parameters to add to the last lineage step.
    """

    out: Path
    header: PoolHeader
    images: ImageTable
    codec: Codec
    views: Views = "stored"
    source: BatchSource
    shards: Sequence[Shard]
    settings: Mapping[str, Any]
    base: Manifest | None = None
    packed: ImageCarrier | None = None
    content_digest: str | None = None
    most_bytes: int | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_readable(self.header, where=self.out)
        if len(self.images) and int(self.images.classes.max()) >= self.header.classes:
            raise InvalidArgumentError(
                "image table contains a class that the pool's labels do not have",
                expected=f"classes below {self.header.classes}",
                got=int(self.images.classes.max()),
            )

    @property
    def batches(self) -> int:
        return sum(shard.batches for shard in self.shards)

    def identity(self) -> dict[str, Any]:
        """Return everything that determines the finished pool, as JSON values."""
        return {
            "settings": self.settings,
            **pool_identity(self.header, self.codec, self.images, self.views),
            "lineage": [asdict(step) for step in self.header.lineage],
            "base": self.base and bytes_digest(self.base.dump()),
            "packed": self.packed is not None,
            "batches": self.batches,
        }

    def recut(self, counts: Sequence[int]) -> PoolPlan:
        """Return the plan, cut into the same shards as unfinished work. counts: number of items per shard."""
        if list(counts) == [len(shard.items) for shard in self.shards]:
            return self
        items = [item for shard in self.shards for item in shard.items]
        if len(items) != sum(counts) or len(items) != self.batches:
            raise StagingMismatchError(
                "unfinished work has a different number of items",
                where=self.out,
                expected=len(items),
                got=sum(counts),
                hint="replace the unfinished work (--overwrite)",
            )
        rest = iter(items)
        return replace(self, shards=[Shard(tuple(islice(rest, count)), count) for count in counts])

    def writer(self, directory: Path) -> ShardWriter:
        """Return a picklable writer of the plan's shards. directory: path of OUT.partial."""
        header = replace(self.header, lineage=())
        return ShardWriter(directory, replace(self, header=header, shards=(), base=None, packed=None))


@dataclass(frozen=True, eq=False)
class ShardWriter:
    """Worker that writes the shards of a plan. Its tasks are (shard number, shard)."""

    directory: Path
    plan: PoolPlan

    @cached_property
    def _constraints(self) -> ViewConstraints:
        return view_constraints(self.plan.header, self.plan.images, self.plan.views)

    def do(self, task: tuple[int, Shard], *, again: bool) -> Steps:
        """Write one shard and return its number. Yield how many batches each step finished."""
        del again  # An interrupted shard leaves nothing to resume.
        number, shard = task
        batches: list[EncodedBatch] = []
        skipped: list[Skipped] = []
        source = self.plan.source(shard.items)
        with contextlib.closing(source) if isinstance(source, Generator) else contextlib.nullcontext():
            for one in source:
                if isinstance(one, Skipped):
                    skipped.append(one)
                    continue
                self.check(one)
                batches.append(one)
                yield 1
        keys = {batch.key for batch in batches}
        if len(keys) != len(batches) or (len(keys) != shard.batches and not skipped):
            expected, got = f"{shard.batches} batches", f"{len(batches)} batches with {len(keys)} keys"
            raise InvalidBatchError("the source yielded the wrong batches", expected=expected, got=got)
        self.write(number, batches, skipped)
        yield max(0, shard.batches - len(batches))
        return number

    def check(self, batch: EncodedBatch) -> None:
        header, images, rows = self.plan.header, self.plan.images, batch.views.rows
        if rows > header.batch_size:
            raise InvalidBatchError(
                "batch is too large", where=batch.key, expected=f"at most {header.batch_size} rows", got=rows
            )
        if batch.constraints != self._constraints:
            require_readable_views(batch.views, images, header.augmentation)
            if self.plan.views == "drawn":
                require_drawn(batch.views, header, images)

    def write(self, number: int, batches: Sequence[EncodedBatch], skipped: Sequence[Skipped] = ()) -> None:
        write_shard(
            self.directory,
            number,
            batches,
            codec=self.plan.codec,
            classes=self.plan.header.classes,
            views=self.plan.views,
            skipped=skipped,
        )


def cut_evenly(keys: Sequence[BatchKey], size: int) -> list[Shard]:
    """Cut keys into shards of `size` batches; the last may be smaller. The items of a shard are its keys."""
    parts = [tuple(keys[start : start + size]) for start in range(0, len(keys), size)]
    return [Shard(part, len(part)) for part in parts]


def cut_by_size(
    keys: Sequence[BatchKey], rows: npt.NDArray[np.integer[Any]], label_bytes: npt.NDArray[np.integer[Any]]
) -> list[Shard]:
    """Cut keys into shards. Each shard ends with the first batch that reaches a limit of the format."""
    shards, start, weight, views = [], 0, 0, 0
    for end, (more_rows, more_bytes) in enumerate(zip(rows.tolist(), label_bytes.tolist(), strict=True), 1):
        weight += more_bytes
        views += more_rows
        full = weight >= SHARD_LABEL_BYTES or views >= SHARD_VIEW_ROWS or end - start >= SHARD_BATCHES
        if full or end == len(keys):
            shards.append(Shard(tuple(keys[start:end]), end - start))
            start, weight, views = end, 0, 0
    return shards


def raw_batches_per_shard(header: PoolHeader) -> int:
    """Return how many full batches of float16 labels fill a shard; at least 1."""
    return max(1, SHARD_LABEL_BYTES // (2 * header.classes * header.batch_size))


def pool_identity(header: PoolHeader, codec: Codec, images: ImageTable, views: Views) -> dict[str, Any]:
    """Return the settings that all batches of a pool share, as JSON values. The lineage is left out."""
    described = asdict(header)
    del described["lineage"]
    return {
        **described,
        "views": views,
        "codec": {"name": codec.name, "parameters": codec.parameters()},
        "codec_tables": {name: bytes_digest(data) for name, data in codec.tables().items()},
        "images_digest": images.digest().hex(),
    }


def require_alike(
    expected: Mapping[str, Any], got: Mapping[str, Any], *, where: object, problem: str, hint: str
) -> None:
    """Refuse pools with different identities. expected, got: results of `pool_identity`."""
    for name, wanted, found in differences(expected, got):
        raise PoolConflictError(
            f"{problem}: field '{name}' differs", where=where, expected=wanted, got=found, hint=hint
        )
