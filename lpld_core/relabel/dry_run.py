"""A build's dry run: one batch labelled in memory, and from it what the whole will cost."""

from __future__ import annotations

import time
from dataclasses import dataclass

from lpld_core.relabel.build import Build
from lpld_core.relabel.cost import LabelCost, label_cost
from lpld_core.relabel.rehearsal import labelled
from lpld_labels.pool.shard import EncodedBatch
from lpld_labels.pool.shard_files import views_file_bytes
from lpld_labels.render import ImageStore, apply_views


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a build would cost. seconds: by one worker, judged by a batch of `trial_views`."""

    cost: LabelCost
    trial_views: int
    trial_seconds: float

    @property
    def seconds(self) -> float:
        return self.trial_seconds * self.cost.views / self.trial_views


def dry_run(build: Build) -> DryRun:
    """Label the build's first batch and throw it away; nothing is written anywhere."""
    asked = build.settings
    first, second = (build.draw(key) for key in (build.wanted[0], build.wanted[-1]))
    store = ImageStore(build.source)
    apply_views(first, store, build.augmentation, inside=True)  # decoded once, as it will be in the long run
    start = time.perf_counter()
    pixels = apply_views(first, store, build.augmentation, inside=True)
    batch = labelled(first, build.ensemble.logits(pixels), build.codec)
    encoded = EncodedBatch.make(batch, build.codec.encode(batch.labels))
    seconds = time.perf_counter() - start
    cost = label_cost(
        images=len(build.table),
        epochs=asked.epochs,
        batch_size=asked.batch_size,
        ratio=asked.ratio,
        teachers=len(build.ensemble.teachers),
        labels_per_row=encoded.nbytes / first.rows,
        views_per_row=(views_file_bytes([first, second]) - views_file_bytes([first])) / second.rows,
        drawn=asked.views == "drawn",
    )
    return DryRun(cost=cost, trial_views=first.rows, trial_seconds=seconds)
