"""Two smaller tables of the paper: the six components of a soft label, and class-wise statistics."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.storage.measure import Measurement, write_pool
from benchmarks.storage.spec import CLASS_STATISTICS, COMPONENT_BYTES, FKD_RATES
from lpld_core.networks.models import network_source
from lpld_core.squeeze.statistics import ClassStatistics, LayerStatistics
from lpld_labels import Teacher
from lpld_labels.format.schema import Component
from lpld_labels.inspect.summary import summarise

NAMES: Mapping[str, Component] = {
    "1. crop coordinates": "crop",
    "2. flip status": "flip",
    "3. index of cutmix images": "mix_index",
    "4. strength of cutmix": "mix_strength",
    "5. cutmix box": "mix_box",
    "6. prediction logits": "labels",
}
"""The paper's components and what `inspect` calls them."""
PRUNED = (10, 20, 40)
TOP_K = 50
MIB = 2.0**20


def component_table(measurement: Measurement, folder: Path, *, batches: int = 2) -> dict[str, Any]:
    """Return bytes per row of each component: as the paper counts, and in pools of ours as written.

    `rates` has the paper's full compression rates of top-K labels beside 2049 / (49 + 4 K), and what is
    left per component after pruning: pruning divides all six, top-K only the last.
    """
    rows = batches * measurement.dataset.batch_size
    ours = {}
    for codec in ("f16", "klt", f"topk:{TOP_K}"):
        with tempfile.TemporaryDirectory(dir=folder) as name:
            path = Path(name) / "pool"
            images = measurement.dataset.images(1)
            # The basis of klt belongs to the pool, not to these few rows.
            made = measurement.codec(codec, measurement.dataset.label_rows(10, 1))
            write_pool(path, measurement.header(), made, measurement.batches(batches, images=images), images)
            parts = summarise(path).components
        ours[codec] = {name: round(value / rows, 3) for name, value in parts.items()}
    total = sum(COMPONENT_BYTES.values())
    metadata = total - COMPONENT_BYTES["6. prediction logits"]
    return {
        "components": [
            {
                "component": name,
                "paper_bytes_per_row": size,
                **{f"{codec}_bytes_per_row": parts.get(NAMES[name], 0.0) for codec, parts in ours.items()},
            }
            for name, size in COMPONENT_BYTES.items()
        ],
        "keys_bytes_per_row": {codec: parts["keys"] for codec, parts in ours.items()},
        "rates": [
            {"method": f"top-{k}", "rate": round(total / (metadata + 4 * k), 2), "paper": paper}
            for k, paper in FKD_RATES.items()
        ]
        + [{"method": f"pruning {ratio}x", "rate": float(ratio), "paper": float(ratio)} for ratio in PRUNED],
    }


def statistics_table(folder: Path) -> list[dict[str, Any]]:
    """Return MiB of a ResNet-18 checkpoint and of its class statistics, from files written here."""
    found = []
    for dataset, (classes, original, with_statistics) in CLASS_STATISTICS.items():
        network = "small-resnet18" if dataset == "Tiny-ImageNet" else "resnet18"
        module = network_source(network).build(classes).module
        norms = [part for part in module.named_modules() if isinstance(part[1], torch.nn.BatchNorm2d)]
        statistics = ClassStatistics(
            teacher=Teacher(name=network),
            class_names=tuple(f"{number:05d}" for number in range(classes)),
            counts=torch.ones(classes, dtype=torch.int64),
            layers=tuple(
                LayerStatistics(
                    name=name,
                    mean=torch.zeros(classes, norm.num_features),
                    variance=torch.ones(classes, norm.num_features),
                )
                for name, norm in norms
            ),
            update="exact",
            momentum=None,
        )
        with tempfile.TemporaryDirectory(dir=folder) as name:
            model_file, statistics_file = Path(name) / "model.pth", Path(name) / "statistics.safetensors"
            torch.save(module.state_dict(), model_file)
            statistics.save(statistics_file)
            model, extra = (path.stat().st_size / MIB for path in (model_file, statistics_file))
        found.append(
            {
                "dataset": dataset,
                "classes": classes,
                "channels": sum(norm.num_features for _, norm in norms),
                "unit": "MiB",
                "model": round(model, 2),
                "model_paper": original,
                "statistics": round(extra, 2),
                "statistics_paper": round(with_statistics - original, 2),
                "together": round(model + extra, 2),
                "together_paper": with_statistics,
                "deviation_together": round((model + extra) / with_statistics - 1, 4),
            }
        )
    return found
