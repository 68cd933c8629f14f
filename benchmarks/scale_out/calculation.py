"""Where 64 workers that label ImageNet-21K would wait: the driver, the store or the commit.

Each is a queue with one server. Its share is how long it is busy for every second that workers label; above
1 it sets the pace. The commit comes after the last label, so its share is added to the whole.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.scale_out.costs import cost_of
from lpld_labels.format.schema import SHARD_LABEL_BYTES

BATCHES_PER_TASK = SHARD_LABEL_BYTES // (2 * 10450 * 32)


@dataclass(frozen=True, kw_only=True)
class Constants:
    """What was measured. images_per_second: of one worker, which is the reader's own figure."""

    task_seconds: float
    seal_gb_per_second: float
    commit_seconds_per_shard: float
    proof_gb_per_second: float
    driver_bytes_per_batch: float
    images_per_second: float = 1000.0


def at_scale(constants: Constants, workers: int = 64) -> dict[str, Any]:
    """Return how busy each part would be, and which one is the first to set the pace."""
    cost = cost_of("imagenet21k", 10450, 20, 1)
    labelling = cost.forwards / (workers * constants.images_per_second)
    tasks = cost.batches / BATCHES_PER_TASK
    staged = cost.final_bytes / 1e9
    # A worker seals between two batches; the disk has the bytes of all of them.
    sealing = staged / workers / constants.seal_gb_per_second
    # A task fills a shard.
    commit = tasks * constants.commit_seconds_per_shard
    shares = {
        "driver": tasks * constants.task_seconds / labelling,
        "seals_of_a_worker": sealing / labelling,
        "commit": commit / labelling,
    }
    return {
        "workers": workers,
        "constants": asdict(constants),
        "views": cost.views,
        "tasks": round(tasks),
        "labelling_hours": round(labelling / 3600, 3),
        "staged_gb": round(staged),
        "store_gb_per_second_wanted": round(staged / labelling, 3),
        "driver_memory_gb": round(cost.batches * constants.driver_bytes_per_batch / 1e9, 2),
        "commit_hours": round(commit / 3600, 3),
        "commit_hours_if_all_is_read": round(staged / constants.proof_gb_per_second / 3600, 3),
        "busy_share": {name: round(share, 4) for name, share in shares.items()},
        "bottleneck": max(shares, key=lambda name: shares[name]),
        "workers_until_the_driver_is_busy": round(workers / shares["driver"]),
    }
