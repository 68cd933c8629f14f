"""`lpqld_loader`: pools for LPQLD's train_FKD_LPQLD.py, with whole labels or the k largest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.loader.authors.epochs import complete_per_epoch, complete_places, policy_epochs
from lpld_labels.loader.authors.lpld import lpld_seen
from lpld_labels.loader.authors.script_batches import Replayed
from lpld_labels.loader.authors.script_loader import ScriptLoader, ScriptOptions, check_arguments
from lpld_labels.loader.authors.top_labels import TopLabels
from lpld_labels.loader.opening import Location, open_reader
from lpld_labels.pool.reader import PoolReader

if TYPE_CHECKING:
    from typing_extensions import Unpack

LpqldBatch = tuple[Any, ...]
"""As `LpldBatch`; with label quantisation soft_label is float32 [B, k], followed by int64 [B, k] classes."""


class LpqldLoader(ScriptLoader):
    """Yields `LpqldBatch` tuples. Made by `lpqld_loader`."""

    top_k: int | None = None

    def _batch(self, replayed: list[tuple[Replayed, torch.Tensor]]) -> LpqldBatch:
        ((item, images),) = replayed
        mixed = (lpld_seen(item, images), item.mix_index, item.mix_lam, item.mix_bbox)
        if self.top_k is None:
            return (*mixed, self._labels(item))
        if isinstance(self._decoder, TopLabels):
            values, classes = item.parts
            return (*mixed, values[:, : self.top_k], classes[:, : self.top_k])
        largest = torch.topk(self._labels(item), self.top_k, dim=1)
        return (*mixed, largest.values, largest.indices)


def lpqld_loader(
    pool: PoolReader | Location,
    images_dir: Location | None = None,
    *,
    batch_size: int,
    mix_type: str | None,
    label_quantization: str | None = None,
    **options: Unpack[ScriptOptions],
) -> LpqldLoader:
    """Open a pool for LPQLD's script; yields one `LpqldBatch` per label batch.

    The script itself says what to play, by `set_batch_list`. Batch n is the n-th complete one of the
    pool in key order: the script's own folders have no others.

    label_quantization: the script's own, "MR-k": give the k largest labels and their classes, from a
        top-k pool as they are stored. None gives whole labels.
    batch_size, mix_type: what the script was told; refused unless they are the pool's.
    options: see `ScriptOptions`.
    """
    reader = open_reader(pool)
    check_arguments(reader, batch_size=batch_size, mix_type=mix_type)
    top_k = _kept(label_quantization, reader)
    codec = None if top_k is None else reader.codec.top_k
    numbered = complete_places(reader)
    loader = LpqldLoader(
        reader,
        images_dir,
        policy_epochs(reader, "stored", seed=0, batches_per_epoch=None),
        numbered=numbered,
        batches_per_epoch=min(complete_per_epoch(reader), len(numbered)),
        decoder=None if codec is None else TopLabels(codec, reader.classes),
        **options,
    )
    loader.top_k = top_k
    return loader


def _kept(label_quantization: str | None, pool: PoolReader) -> int | None:
    """Return k of "MR-k", or None without label quantisation."""
    if not label_quantization:
        return None
    method, _, number = label_quantization.partition("-")
    codec = pool.codec.top_k
    most = pool.classes if codec is None else codec.k
    if method != "MR" or not number.isdigit() or not 1 <= int(number) <= most:
        raise InvalidArgumentError(
            "the pool cannot give labels for this --label_quantization",
            where=pool.location,
            expected=f"MR-k with k up to {most}",
            got=label_quantization,
            hint="the program's own folders hold no others either",
        )
    return int(number)
