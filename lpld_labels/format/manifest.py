"""The manifest: what a pool is, in frozen records, and its JSON form.

Parsed once at the edge (`Manifest.parse`); inside the program there are no loose dictionaries.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import PurePosixPath
from typing import Any, Literal

from lpld_labels.errors import FormatVersionError, ManifestError
from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.schema import FORMAT_NAME, FORMAT_VERSION, LABEL_KINDS

FileRole = Literal["views", "labels", "batches", "images", "codec"]
FILE_ROLES = ("views", "labels", "batches", "images", "codec")


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
        return Teacher(
            name=reader.text("name"),
            weights_digest=reader.optional("weights_digest", reader.text),
            mean=reader.optional("mean", lambda n: reader.numbers(n, length=3)),
            std=reader.optional("std", lambda n: reader.numbers(n, length=3)),
        )


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How views were drawn and which code turned them into pixels.

    output_height, output_width: size of a view in pixels.
    resize: name of the resize code (see lpld_labels.replay), e.g. ``torch`` or ``pil``.
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

    @staticmethod
    def parse(reader: FieldReader) -> Augmentation:
        return Augmentation(
            output_height=reader.integer("output_height", minimum=1),
            output_width=reader.integer("output_width", minimum=1),
            resize=reader.text("resize"),
            crop_scale=reader.optional("crop_scale", lambda n: reader.numbers(n, length=2)),
            crop_ratio=reader.optional("crop_ratio", lambda n: reader.numbers(n, length=2)),
            flip_probability=reader.optional("flip_probability", reader.number),
            mix=reader.text("mix", choices=("none", "cutmix", "mixup")),
            mix_alpha=reader.optional("mix_alpha", reader.number),
            cutout_fraction=reader.optional("cutout_fraction", reader.number),
            patch_grid=reader.optional("patch_grid", lambda n: reader.integer(n, minimum=1)),
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
            parent_digest=reader.optional("parent_digest", reader.text),
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
        return PoolHeader(
            classes=reader.integer("classes", minimum=2),
            batch_size=reader.integer("batch_size", minimum=1),
            augmentation=reader.nested("augmentation", Augmentation.parse),
            label_kind=reader.text("label_kind", choices=LABEL_KINDS),
            seed=reader.optional("seed", reader.integer),
            teachers=reader.items("teachers", Teacher.parse),
            ensemble=reader.optional("ensemble", reader.text),
            lineage=reader.items("lineage", LineageStep.parse),
        )


@dataclass(frozen=True, kw_only=True)
class CodecEntry:
    """Codec name and the parameters its decoder needs."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def parse(reader: FieldReader) -> CodecEntry:
        return CodecEntry(name=reader.text("name"), parameters=reader.mapping("parameters"))


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the pool: path below the pool, size, number of rows, hex SHA-256 of its bytes."""

    path: str
    role: str
    bytes: int
    rows: int
    digest: str

    @staticmethod
    def parse(reader: FieldReader) -> FileEntry:
        entry = FileEntry(
            path=reader.text("path"),
            role=reader.text("role", choices=FILE_ROLES),
            bytes=reader.integer("bytes"),
            rows=reader.integer("rows"),
            digest=reader.text("digest"),
        )
        parts = entry.path.split("/")
        # A manifest from elsewhere must not be able to point outside its own directory.
        if entry.path.startswith("/") or "\\" in entry.path or any(p in ("", ".", "..") for p in parts):
            raise reader.error("path", "a path below the pool", repr(entry.path))
        return entry


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much there is: images in the table, epochs that have a batch, batches, rows."""

    images: int
    epochs: int
    batches: int
    rows: int

    @staticmethod
    def parse(reader: FieldReader) -> Counts:
        return Counts(**{f.name: reader.integer(f.name) for f in fields(Counts)})


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The whole of pool.json."""

    header: PoolHeader
    codec: CodecEntry
    counts: Counts
    content_digest: str
    files: tuple[FileEntry, ...]
    created_by: str

    def files_of(self, role: FileRole) -> tuple[FileEntry, ...]:
        """Return the files of one role in manifest order."""
        return tuple(entry for entry in self.files if entry.role == role)

    def dump(self) -> bytes:
        """Return the JSON form: UTF-8, sorted keys, one trailing newline."""
        document: dict[str, Any] = {
            "format": FORMAT_NAME,
            "format_version": FORMAT_VERSION,
            **asdict(self.header),
            "codec": asdict(self.codec),
            "counts": asdict(self.counts),
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
        manifest = Manifest(
            header=PoolHeader.parse(reader),
            codec=reader.nested("codec", CodecEntry.parse),
            counts=reader.nested("counts", Counts.parse),
            content_digest=reader.text("content_digest"),
            files=reader.items("files", FileEntry.parse),
            created_by=reader.text("created_by"),
        )
        reader.finish()
        manifest._check_files(reader)
        return manifest

    def _check_files(self, reader: FieldReader) -> None:
        roles: tuple[FileRole, ...] = ("batches", "images")
        for role in roles:
            found = len(self.files_of(role))
            if found != 1:
                raise reader.error("files", f"one file of role {role}", found)
        views = [PurePosixPath(entry.path).name for entry in self.files_of("views")]
        labels = [PurePosixPath(entry.path).name for entry in self.files_of("labels")]
        if views != labels:
            raise reader.error("files", "a labels file for every views file", f"{views} and {labels}")


def to_json(document: dict[str, Any]) -> bytes:
    """Return stable, readable UTF-8 JSON; NaN and Inf are refused."""
    text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode("utf-8")


def from_json(text: bytes, *, where: str) -> Any:
    """Parse UTF-8 JSON; a damaged file becomes a ManifestError with its place."""
    try:
        return json.loads(text.decode("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ManifestError(
            f"not valid JSON: {error}", where=where, hint="restore the file; the pool's data may be intact"
        ) from None
