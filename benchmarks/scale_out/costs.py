"""The cost table of docs/clusters.md.

python -m benchmarks.scale_out --costs prints it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lpld_core.relabel.source import LabelCost, label_cost
from lpld_core.train.settings import preset_named

DATA_SETS = (
    ("ImageNet-1K, IPC 10", "imagenet1k", 1000, 10),
    ("ImageNet-1K, IPC 50", "imagenet1k", 1000, 50),
    ("ImageNet-1K, IPC 200", "imagenet1k", 1000, 200),
    ("ImageNet-21K, IPC 20", "imagenet21k", 10450, 20),
)
"""Name, preset, classes, images per class."""
RATIOS = (1, 40)
F16_BYTES_PER_CLASS = 1.697
"""Of a label in codec f16: 1,697 bytes a row of real ImageNet-1K logits (`lpld-labels encode --help`)."""


def cost_of(preset: str, classes: int, ipc: int, ratio: float) -> LabelCost:
    """Return what labels in f16 cost with one teacher and a published recipe."""
    settings = replace(preset_named(preset).label, ratio=ratio)
    return label_cost(settings, images=classes * ipc, labels_per_row=F16_BYTES_PER_CLASS * classes)


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| data set | ratio | batches | teacher forwards | GPU hours | pool (f16) |"
    yield "|---|---|---|---|---|---|"
    for name, preset, classes, ipc in DATA_SETS:
        for ratio in RATIOS:
            cost = cost_of(preset, classes, ipc, ratio)
            hours = f"{cost.forwards / 3600:,.0f} / r"
            yield (
                f"| {name} | {ratio}x | {cost.batches:,} | {cost.forwards:,} "
                f"| {hours} | {_size(cost.final_bytes)} |"
            )


def _size(count: int) -> str:
    return f"{count / 1e9:.3g} GB" if count < 1e12 else f"{count / 1e12:.3g} TB"
