"""Contents and size of a pool, read from its manifest alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from lpld_labels.format.manifest import Augmentation, LineageStep, Manifest
from lpld_labels.format.schema import COMPONENTS, FORMAT_VERSION, Component
from lpld_labels.inspect.text import shortened
from lpld_labels.io.addresses import Location, redact
from lpld_labels.pool.pool_files import manifest_of
from lpld_labels.results import Result

PICKLE_BATCH_OVERHEAD = 2000  # Bytes that torch.save adds to a file (1.9 to 2.1 kB).
COMPONENT_NAMES: dict[Component, str] = {
    "crop": "crop coordinates",
    "flip": "flip",
    "mix_index": "mix index",
    "mix_strength": "mix strength",
    "mix_box": "mix box, cut-out, patches",
    "labels": "labels",
    "codec": "codec tables",
    "keys": "keys (epoch, batch, slot, image)",
    "packed": "images",
    "container": "container (footers, indexes, image table)",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class PoolSummary(Result):
    """Contents and size of a pool. location: the pool's path or address, without secrets."""

    location: str
    manifest: Manifest

    @cached_property
    def components(self) -> dict[Component, int]:
        components = {name: self.manifest.components[name] for name in COMPONENTS}
        components["container"] += len(self.manifest.dump())
        return components

    @property
    def total_bytes(self) -> int:
        return sum(self.components.values())

    @property
    def fp16_bytes(self) -> int:
        return self.manifest.counts.rows * self.manifest.header.classes * 2

    @property
    def pickle_components(self) -> dict[Component, int]:
        """Bytes of each component if there were one torch.save file per batch, with labels in fp16."""
        counts, header = self.manifest.counts, self.manifest.header
        mixed = header.augmentation.mix != "none"
        return pickle_layout(counts.rows, counts.batches, header.classes, mixed=mixed)

    @property
    def pickle_bytes(self) -> int:
        return sum(self.pickle_components.values())

    @property
    def bytes_per_row(self) -> float:
        return self.total_bytes / self.manifest.counts.rows if self.manifest.counts.rows else 0.0

    @property
    def bytes_per_image(self) -> float:
        return self.total_bytes / max(self.manifest.counts.images, 1)

    def settings(self) -> dict[str, str]:
        header, counts, coverage = self.manifest.header, self.manifest.counts, self.manifest.coverage
        simple = {k: v for k, v in self.manifest.codec.parameters.items() if not isinstance(v, dict)}
        parameters = ", ".join(f"{name} {value}" for name, value in simple.items())
        teachers = [
            f"{t.name} {t.weights_digest[:12] if t.weights_digest else 'weights unknown'}"
            for t in header.teachers
        ]
        ensemble = f" ({header.ensemble})" if header.ensemble else ""
        incomplete = f" ({counts.incomplete_batches:,} incomplete)" if counts.incomplete_batches else ""
        return {
            "content digest": self.manifest.content_digest,
            "labels": f"{header.label_kind}, {header.classes:,} classes",
            "codec": self.manifest.codec.name + (f" ({parameters})" if parameters else ""),
            "images": f"{counts.images:,} ({coverage.images:,} seen)",
            "classes seen": f"{coverage.classes:,} of {header.classes:,}",
            "views per image": f"min {coverage.minimum}, median {coverage.median:g}, max {coverage.maximum}",
            "batches": f"{counts.batches:,} of {header.batch_size:,} rows{incomplete}",
            "rows": f"{counts.rows:,}",
            "epochs": f"{counts.epochs:,}",
            "seed": "unknown" if header.seed is None else str(header.seed),
            "teacher": (", ".join(teachers) or "unknown") + ensemble,
            "augmentation": augmentation_words(header.augmentation),
            "views": "stored" if self.manifest.views == "stored" else "drawn when read (not stored)",
            "format version": str(FORMAT_VERSION),
        }

    def as_json(self) -> dict[str, Any]:
        manifest = self.manifest
        return {
            "format_version": FORMAT_VERSION,
            "location": self.location,
            **asdict(manifest.header),
            **asdict(manifest.counts),
            "classes_covered": manifest.coverage.classes,
            "images_covered": manifest.coverage.images,
            "views_per_image": {
                name: getattr(manifest.coverage, name) for name in ("minimum", "median", "maximum")
            },
            "codec": manifest.codec.name,
            "codec_parameters": manifest.codec.parameters,
            "views": manifest.views,
            "bytes": {
                "total": self.total_bytes,
                "logical_fp16": self.fp16_bytes,
                "pickle_layout": self.pickle_bytes,
                "components": self.components,
            },
            "bytes_per_row": round(self.bytes_per_row, 2),
            "ratio": round(self.fp16_bytes / self.total_bytes, 3),
            "ratio_to_pickle_layout": round(self.pickle_bytes / self.total_bytes, 3),
            "content_digest": manifest.content_digest,
        }


def summarise(location: Location) -> PoolSummary:
    """Return the summary of a pool. location: a pool or its pool.json. Reads only the manifest."""
    return PoolSummary(location=redact(location), manifest=manifest_of(location))


def pickle_layout(rows: int, batches: int, classes: int, *, mixed: bool) -> dict[Component, int]:
    """Return bytes by component if each batch were a torch.save file of fp16 logits. rows: total rows."""
    sizes: dict[Component, int] = dict.fromkeys(COMPONENTS, 0)
    return sizes | {
        "labels": rows * classes * 2,
        "crop": rows * 16,  # float32[4]
        "flip": rows,  # bool
        "mix_index": rows * 8 if mixed else 0,  # int64
        "container": batches * PICKLE_BATCH_OVERHEAD,
    }


def step_words(step: LineageStep) -> dict[str, str]:
    """Return the settings and results of a lineage step as short texts, without unset settings."""
    recorded = dict(step.parameters)
    settings = recorded.pop("settings", None)
    known = dict(settings) if isinstance(settings, dict) else {}
    known |= {f"measured {name}" if name in known else name: value for name, value in recorded.items()}
    return {name: _value(value) for name, value in known.items() if value not in (None, [], {}, False)}


def augmentation_words(how: Augmentation) -> str:
    """Return in words how views were drawn."""
    parts = [f"{how.output_height} x {how.output_width} px, resize {how.resize}"]
    if how.crop_scale is not None:
        parts.append(f"crop {how.crop_scale[0]:g} to {how.crop_scale[1]:g}")
    if how.flip_probability:
        parts.append(f"flip {how.flip_probability:g}")
    if how.mix != "none":
        parts.append(how.mix + (f" Beta({how.mix_alpha:g})" if how.mix_alpha is not None else ""))
    if how.cutout_fraction is not None:
        parts.append(f"cut-out {how.cutout_fraction:g}")
    if how.patch_grid is not None:
        parts.append(f"patches {how.patch_grid} x {how.patch_grid}")
    return ", ".join(parts)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
