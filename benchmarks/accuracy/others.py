"""Label codecs that a sceptic would choose, as baselines: product quantisation, and sampled classes.

    pq:M       centred logits are cut into M parts; of each, the nearest of 256 words of its codebook is kept
    sampled:K  K classes are drawn from the label at the training temperature; their shares are unbiased

Students train on a pool of the decoded labels. Its bytes are those of the pool without its label files,
plus the baseline's codes and tables, as small as codes of fixed length can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lpld_labels.codecs import codec_named
from lpld_labels.format.manifest import Manifest
from lpld_labels.pool.reader import PoolReader
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.writer import PoolWriter
from lpld_labels.transforms.prune import plan_prune, ratio_that_keeps, write_pruned
from lpld_labels.transforms.settings import PruneSettings

Floats = npt.NDArray[np.float32]
_WORDS, _FIT_ROWS, _ROUNDS = 256, 20_000, 20
_ABSENT = 1e-12  # Share of a class that was not drawn; logits are finite.


class Quantised:
    """Product quantisation of centred logits."""

    def __init__(self, logits: Floats, parts: int, seed: int) -> None:
        from scipy.cluster.vq import kmeans2

        rows = _centred(logits)
        self._mean = rows.mean(0)
        words = min(_WORDS, max(2, len(rows) // 4))
        self._books = [
            (part, kmeans2((rows - self._mean)[:, part], words, _ROUNDS, minit="++", seed=seed)[0])
            for part in np.array_split(np.arange(rows.shape[1]), parts)
        ]
        self.row_bytes = parts * math.ceil(math.log2(words)) / 8
        # The means and the codebooks, in float16.
        self.table_bytes = 2 * (len(self._mean) + sum(book.size for _, book in self._books))

    def decoded(self, logits: Floats) -> Floats:
        from scipy.cluster.vq import vq

        rows = _centred(logits) - self._mean
        found = np.tile(self._mean, (len(rows), 1))
        for part, book in self._books:
            found[:, part] += book.astype(np.float16)[vq(rows[:, part], book)[0]]
        return found


def _centred(logits: Floats) -> Floats:
    # A constant that is added to a row changes no probability.
    return np.asarray(logits - logits.mean(1, keepdims=True))


@dataclass
class Sampled:
    """Classes drawn with replacement from softmax(logits / temperature)."""

    draws: int
    classes: int
    temperature: float
    random: np.random.Generator
    table_bytes: int = field(default=0, init=False)

    @property
    def row_bytes(self) -> float:
        """Return the bytes of one number for all counts of a label."""
        return math.ceil(math.log2(math.comb(self.classes + self.draws - 1, self.draws))) / 8

    def decoded(self, logits: Floats) -> Floats:
        raised = np.exp((logits - logits.max(1, keepdims=True)).astype(np.float64) / self.temperature)
        shares = self.random.multinomial(self.draws, raised / raised.sum(1, keepdims=True)) / self.draws
        # At the training temperature, these are the shares again.
        return (self.temperature * np.log(np.maximum(shares, _ABSENT))).astype(np.float32)


def baseline(spec: str, labels: PoolReader, temperature: float, seed: int) -> Quantised | Sampled:
    """Return the baseline of a spec such as pq:10. labels: the pool that it is fitted to."""
    kind, number = spec.split(":")
    random = np.random.default_rng(seed)
    if kind == "sampled":
        return Sampled(int(number), labels.classes, temperature, random)
    batches = random.permutation(len(labels.index))[: -(-_FIT_ROWS // labels.header.batch_size)]
    return Quantised(np.concatenate([labels.labels_at(n, np.float32) for n in batches]), int(number), seed)


def write_baseline(
    labels: PoolReader, plain: Manifest, found: Quantised | Sampled, folder: Path, seed: int
) -> int:
    """Write as many decoded batches as fit into the bytes of `plain` into folder/pool; return their bytes."""
    budget, batches = pool_bytes(plain), len(labels.index)
    full, pruned = _without_labels(labels.manifest), _without_labels(plain)
    # 1% more, because views of few batches compress less evenly.
    per_batch = 1.01 * (full - pruned) / (batches - plain.counts.batches)
    fixed = pruned - per_batch * plain.counts.batches + found.table_bytes
    rows = labels.manifest.counts.rows / batches
    kept = max(1, min(batches, int((budget - fixed) / (per_batch + rows * found.row_bytes))))
    settings = PruneSettings(ratio=ratio_that_keeps(kept, batches), seed=seed)
    write_pruned(plan_prune(labels, settings), folder / "kept")
    with PoolReader(folder / "kept") as pool:
        codec, views = codec_named("f32"), pool.manifest.views
        out = PoolWriter(folder / "pool", header=pool.header, images=pool.images, codec=codec, views=views)
        with out as writer:
            for batch in pool:
                writer.append(replace(batch, labels=found.decoded(batch.labels.astype(np.float32))))
            manifest = writer.commit()
    return _without_labels(manifest) + found.table_bytes + math.ceil(manifest.counts.rows * found.row_bytes)


def _without_labels(manifest: Manifest) -> int:
    return pool_bytes(manifest) - sum(entry.bytes for entry in manifest.files_of("labels"))
