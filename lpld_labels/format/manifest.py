"""The manifest: what a pool is, in frozen records, and its JSON form.

Parsed once at the edge (`Manifest.parse`); inside the program there are no loose dictionaries.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from lpld_labels.errors import FormatVersionError, ManifestError
from lpld_labels.format.files import (
    CodecEntry,
    Counts,
    Coverage,
    FileEntry,
    FileRole,
    check_counts,
    check_files,
)
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.limits import (
    MAX_BATCH_SIZE,
    MAX_BATCH_VALUES,
    MAX_CLASSES,
    MAX_PATCH_GRID,
    MAX_SEED,
    MAX_SIDE,
)
from lpld_labels.format.schema import (
    COMPONENTS,
    FORMAT_NAME,
    FORMAT_VERSION,
    LABEL_KINDS,
    VIEWS,
    Component,
    Views,
)
from lpld_labels.format.strict_json import from_json, to_json


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Who gave the labels.

    name: what loads it again, e.g. ``resnet18`` or ``timm:resnet50``.
    weights_digest: hex SHA-256 over its weights, or None where unknown (imported pools).
    mean, std: per-channel normalisation on pixels scaled to 0..1; None where unknown.
    """

    name: str
    weights_digest: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @staticmethod
    def parse(reader: FieldReader) -> Teacher:
        mean = reader.optional("mean", lambda n: reader.numbers(n, length=3))
        std = reader.optional("std", lambda n: _above_zero(reader, n))
        if (mean is None) != (std is None):
            raise reader.error("std", "null if mean is, else 3 numbers", std)
        return Teacher(
            name=reader.text("name"),
            weights_digest=reader.optional("weights_digest", reader.digest),
            mean=mean,
            std=std,
        )


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How views were drawn and which code turned them into pixels.

    output_height, output_width: size of a view in pixels.
    resize: name of the resize code (see lpld_labels.render), e.g. ``torch`` or ``pil``.
    crop_scale, crop_ratio: RandomResizedCrop's area share and aspect ratio, (low, high).
    flip_probability, mix, mix_alpha, cutout_fraction, patch_grid: None or "none" where not used.
    """

    output_height: int
    output_width: int
    resize: str
    crop_scale: tuple[float, ...] | None = None
    crop_ratio: tuple[float, ...] | None = None
    flip_probability: float | None = None
    mix: str = "none"
    mix_alpha: float | None = None
    cutout_fraction: float | None = None
    patch_grid: int | None = None

    def drawing_problem(self) -> str | None:
        """Return the field that no view can be drawn from, or None."""
        for name, bounds, upper in (
            ("crop_scale", self.crop_scale, 1.0),
            ("crop_ratio", self.crop_ratio, math.inf),
        ):
            if bounds is not None and not 0 < bounds[0] <= bounds[1] <= upper:
                return name
        if self.flip_probability is not None and not 0 <= self.flip_probability <= 1:
            return "flip_probability"
        if self.cutout_fraction is not None and not 0 < self.cutout_fraction <= 1:
            return "cutout_fraction"
        mixed = self.mix != "none"
        return "mix_alpha" if mixed and not (self.mix_alpha is not None and self.mix_alpha > 0) else None

    @staticmethod
    def parse(reader: FieldReader) -> Augmentation:
        return Augmentation(
            output_height=reader.integer("output_height", minimum=1, maximum=MAX_SIDE),
            output_width=reader.integer("output_width", minimum=1, maximum=MAX_SIDE),
            resize=reader.text("resize"),
            crop_scale=reader.optional("crop_scale", lambda n: reader.numbers(n, length=2)),
            crop_ratio=reader.optional("crop_ratio", lambda n: reader.numbers(n, length=2)),
            flip_probability=reader.optional("flip_probability", reader.number),
            mix=reader.text("mix", choices=("none", "cutmix", "mixup")),
            mix_alpha=reader.optional("mix_alpha", reader.number),
            cutout_fraction=reader.optional("cutout_fraction", reader.number),
            patch_grid=reader.optional(
                "patch_grid", lambda n: reader.integer(n, minimum=1, maximum=MAX_PATCH_GRID)
            ),
        )


@dataclass(frozen=True, kw_only=True)
class LineageStep:
    """One thing that was done to get this pool: prune, encode, import."""

    operation: str
    parent_digest: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(reader: FieldReader) -> LineageStep:
        return LineageStep(
            operation=reader.text("operation"),
            parent_digest=reader.optional("parent_digest", reader.digest),
            parameters=reader.mapping("parameters"),
        )


@dataclass(frozen=True, kw_only=True)
class PoolHeader:
    """What every batch of a pool has in common; fixed before the first batch is written.

    classes: number of label columns. batch_size: rows of a complete batch.
    seed: what the batches were drawn from, None where not known.
    ensemble: how several teachers' outputs became one label, None for a single teacher.
    """

    classes: int
    batch_size: int
    augmentation: Augmentation
    label_kind: str = "logits"
    seed: int | None = None
    teachers: tuple[Teacher, ...] = ()
    ensemble: str | None = None
    lineage: tuple[LineageStep, ...] = ()

    @staticmethod
    def parse(reader: FieldReader) -> PoolHeader:
        classes = reader.integer("classes", minimum=2, maximum=MAX_CLASSES)
        batch_size = reader.integer(
            "batch_size", minimum=1, maximum=min(MAX_BATCH_SIZE, MAX_BATCH_VALUES // classes)
        )
        return PoolHeader(
            classes=classes,
            batch_size=batch_size,
            augmentation=reader.nested("augmentation", Augmentation.parse),
            label_kind=reader.text("label_kind", choices=LABEL_KINDS),
            seed=reader.optional("seed", lambda n: reader.integer(n, maximum=MAX_SEED)),
            teachers=reader.items("teachers", Teacher.parse),
            ensemble=reader.optional("ensemble", reader.text),
            lineage=reader.items("lineage", LineageStep.parse),
        )


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole of pool.json.

    views: whether they are in files or a reader draws them. components: bytes of all files by component.
    """

    header: PoolHeader
    views: Views = "stored"
    codec: CodecEntry
    counts: Counts
    coverage: Coverage
    components: dict[Component, int]
    content_digest: str
    files: tuple[FileEntry, ...]
    created_by: str

    def files_of(self, role: FileRole) -> tuple[FileEntry, ...]:
        """Return the files of one role in manifest order."""
        return self._by_role.get(role, ())

    @cached_property
    def _by_role(self) -> dict[str, tuple[FileEntry, ...]]:
        """Pools have up to thousands of files, and readers ask with every shard they open."""
        roles = {entry.role for entry in self.files}
        return {role: tuple(entry for entry in self.files if entry.role == role) for role in roles}

    def dump(self) -> bytes:
        """Return the JSON form: UTF-8, sorted keys, one trailing newline."""
        document: dict[str, Any] = {
            "format": FORMAT_NAME,
            "format_version": FORMAT_VERSION,
            **asdict(self.header),
            "views": self.views,
            "codec": asdict(self.codec),
            "counts": asdict(self.counts),
            "coverage": asdict(self.coverage),
            "components": self.components,
            "content_digest": self.content_digest,
            "files": [asdict(entry) for entry in self.files],
            "created_by": self.created_by,
        }
        return to_json(document)

    @staticmethod
    def parse(text: bytes, *, where: str) -> Manifest:
        """Read pool.json; refuse other formats, newer versions and unknown fields."""
        reader = FieldReader(from_json(text, where=where), where=where)
        name = reader.text("format")
        if name != FORMAT_NAME:
            raise ManifestError("not a label pool", where=where, expected=FORMAT_NAME, got=name)
        version = reader.integer("format_version", minimum=1)
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                "pool was written in a newer format",
                where=where,
                expected=f"format_version <= {FORMAT_VERSION}",
                got=version,
                hint="upgrade lpld-labels",
            )
        if not reader.has("views"):
            raise FormatVersionError(
                "pool was written by a draft of format version 1, before its release",
                where=where,
                expected="field 'views'",
                got="none",
                hint="export it with the program that wrote it and import that folder, or build it again",
            )
        manifest = Manifest(
            header=PoolHeader.parse(reader),
            views=_views(reader),
            codec=reader.nested("codec", CodecEntry.parse),
            counts=reader.nested("counts", Counts.parse),
            coverage=reader.nested("coverage", Coverage.parse),
            components=reader.nested("components", _components),
            content_digest=reader.digest("content_digest"),
            files=reader.items("files", FileEntry.parse),
            created_by=reader.text("created_by"),
        )
        reader.finish()
        manifest._check(reader)
        return manifest

    def _check(self, reader: FieldReader) -> None:
        drawn = self.views == "drawn"
        check_files(self.files, drawn=drawn, reader=reader)
        if drawn:
            if self.header.seed is None:
                raise reader.error("seed", "a number, because views are drawn", None)
            problem = self.header.augmentation.drawing_problem()
            if problem is not None:
                raise reader.error(
                    f"augmentation.{problem}", "a range that views can be drawn from", "another"
                )
        check_counts(self.counts, self.files, drawn=drawn, batch_size=self.header.batch_size, reader=reader)
        problem = self.coverage.problem(self.counts, self.header.classes)
        if problem is not None:
            raise reader.error("coverage", problem, str(asdict(self.coverage)))
        size = sum(entry.bytes for entry in self.files)
        if sum(self.components.values()) != size:
            raise reader.error("components", f"a sum of {size}", sum(self.components.values()))


def _views(reader: FieldReader) -> Views:
    return VIEWS[VIEWS.index(reader.text("views", choices=VIEWS))]


def _components(reader: FieldReader) -> dict[Component, int]:
    return {name: reader.integer(name) for name in COMPONENTS}


def _above_zero(reader: FieldReader, name: str) -> tuple[float, ...]:
    values = reader.numbers(name, length=3)
    if min(values) <= 0:
        raise reader.error(name, "3 numbers above 0", list(values))
    return values
