"""What a pool is, as names and words: the same on a terminal, in a report and in a comparison."""

from __future__ import annotations

from lpld_labels.format.manifest import Augmentation
from lpld_labels.inspect.summary import PoolSummary


def settings_of(summary: PoolSummary) -> dict[str, str]:
    """Return the settings by name."""
    return {
        "content digest": summary.content_digest,
        "labels": f"{summary.label_kind}, {summary.classes:,} classes",
        "codec": codec_of(summary),
        "images": f"{summary.images:,} ({summary.images_covered:,} seen)",
        "classes seen": f"{summary.classes_covered:,} of {summary.classes:,}",
        "batches": f"{summary.batches:,} of {summary.batch_size:,} rows",
        "incomplete batches": f"{summary.incomplete_batches:,}",
        "rows": f"{summary.rows:,}",
        "epochs": f"{summary.epochs:,}",
        "seed": "unknown" if summary.seed is None else str(summary.seed),
        "teacher": teachers_of(summary),
        "views": augmentation_of(summary.augmentation),
        "format version": str(summary.format_version),
    }


def codec_of(summary: PoolSummary) -> str:
    """Return the codec with its parameters."""
    parameters = ", ".join(f"{k} {v}" for k, v in summary.codec_parameters.items() if not isinstance(v, dict))
    return f"{summary.codec} ({parameters})" if parameters else summary.codec


def teachers_of(summary: PoolSummary) -> str:
    """Return the teachers with the head of their weights' digests."""
    if not summary.teachers:
        return "unknown"
    heads = [t.weights_digest[:12] if t.weights_digest else "weights unknown" for t in summary.teachers]
    names = [f"{teacher.name} {head}" for teacher, head in zip(summary.teachers, heads, strict=True)]
    return ", ".join(names) + (f" ({summary.ensemble})" if summary.ensemble else "")


def augmentation_of(how: Augmentation) -> str:
    """Return how views were drawn, in words."""
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
