"""The manifest: what a pool is, in frozen records, and its JSON form.

Parsed once at the edge (`Manifest.parse`); inside the program there are no loose dictionaries.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal

import msgspec

from lpld_labels.errors import FormatVersionError, InvalidArgumentError, ManifestError
from lpld_labels.format.files import (
    CodecEntry,
    Counts,
    Coverage,
    FileEntry,
    FileRole,
    check_counts,
    check_files,
)
from lpld_labels.format.json_records import Count, HexDigest, convert, field_error
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
    Component,
    LabelKind,
    MixKind,
    Views,
)
from lpld_labels.format.strict_json import from_json, to_json

Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDE)]
Triple = Annotated[tuple[float, ...], msgspec.Meta(min_length=3, max_length=3)]
Pair = Annotated[tuple[float, ...], msgspec.Meta(min_length=2, max_length=2)]
EnsembleRule = Literal["average", "norm-scaled"]

ENSEMBLE_WORDS: Mapping[EnsembleRule, str] = {
    "norm-scaled": "mean of logits scaled to the teachers' mean Frobenius norm per batch",
    "average": "plain mean of logits",
}
"""What `PoolHeader.ensemble` says for each rule."""
_OLDER_WORDS: Mapping[str, EnsembleRule] = {
    "logits of several teachers, scaled to their mean norm, averaged": "norm-scaled"
}


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """Who gave the labels.

    name: what loads it again, e.g. ``resnet18`` or ``timm:resnet50``.
    weights_digest: hex SHA-256 over its weights, or None where unknown (imported pools).
    mean, std: per-channel normalisation on pixels scaled to 0..1; None where unknown.
    """

    name: str
    weights_digest: HexDigest | None = None
    mean: Triple | None = None
    std: Triple | None = None


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How views were drawn and which code turned them into pixels.

    output_height, output_width: size of a view in pixels.
    resize: name of the resize code (see lpld_labels.render), e.g. ``torch`` or ``pil``.
    crop_scale, crop_ratio: RandomResizedCrop's area share and aspect ratio, (low, high).
    flip_probability, mix, mix_alpha, cutout_fraction, patch_grid: None or "none" where not used.
    """

    output_height: Side
    output_width: Side
    resize: str
    crop_scale: Pair | None = None
    crop_ratio: Pair | None = None
    flip_probability: float | None = None
    mix: MixKind = "none"
    mix_alpha: float | None = None
    cutout_fraction: float | None = None
    patch_grid: Annotated[int, msgspec.Meta(ge=1, le=MAX_PATCH_GRID)] | None = None

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


@dataclass(frozen=True, kw_only=True)
class LineageStep:
    """One thing that was done to get this pool: prune, encode, import."""

    operation: str
    parent_digest: HexDigest | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PoolHeader:
    """What every batch of a pool has in common; fixed before the first batch is written.

    classes: number of label columns. batch_size: rows of a complete batch.
    seed: what the batches were drawn from, None where not known.
    ensemble: how several teachers' outputs became one label, None for a single teacher.
    """

    classes: Annotated[int, msgspec.Meta(ge=2, le=MAX_CLASSES)]
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=MAX_BATCH_SIZE)]
    augmentation: Augmentation
    label_kind: LabelKind = "logits"
    seed: int | None = None
    teachers: tuple[Teacher, ...] = ()
    ensemble: str | None = None
    lineage: tuple[LineageStep, ...] = ()

    def check(self, where: str) -> None:
        """Raise ManifestError where fields do not fit together."""
        most = MAX_BATCH_VALUES // self.classes
        if self.batch_size > most:
            raise field_error("batch_size", f"1 to {most}", self.batch_size, where=where)
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise field_error("seed", f"0 to {MAX_SEED}", self.seed, where=where)
        for number, teacher in enumerate(self.teachers):
            if (teacher.mean is None) != (teacher.std is None):
                expected = "null if mean is, else 3 numbers"
                raise field_error(f"teachers[{number}].std", expected, teacher.std, where=where)
            if teacher.std is not None and min(teacher.std) <= 0:
                raise field_error(f"teachers[{number}].std", "3 numbers above 0", teacher.std, where=where)


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
    content_digest: HexDigest
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
        document = from_json(text, where=where)
        if not isinstance(document, dict) or document.get("format") != FORMAT_NAME:
            got = document.get("format") if isinstance(document, dict) else type(document).__name__
            raise ManifestError("not a label pool", where=where, expected=FORMAT_NAME, got=got)
        version = document.get("format_version")
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise field_error("format_version", "an integer >= 1", version, where=where)
        if version > FORMAT_VERSION:
            raise FormatVersionError(
                "pool was written in a newer format",
                where=where,
                expected=f"format_version <= {FORMAT_VERSION}",
                got=version,
                hint="upgrade lpld-labels",
            )
        if "views" not in document:
            raise FormatVersionError(
                "pool was written by a draft of format version 1, before its release",
                where=where,
                expected="field 'views'",
                got="none",
                hint="export it with the program that wrote it and import that folder, or build it again",
            )
        flat = convert(document, _Document, where=where)
        manifest = Manifest(
            header=PoolHeader(**_values(flat, PoolHeader)),
            **_values(flat, Manifest, "header"),
        )
        manifest._check(where)
        return manifest

    def _check(self, where: str) -> None:
        drawn = self.views == "drawn"
        self.header.check(where)
        check_files(self.files, drawn=drawn, where=where)
        if drawn:
            if self.header.seed is None:
                raise field_error("seed", "a number, because views are drawn", None, where=where)
            problem = self.header.augmentation.drawing_problem()
            if problem is not None:
                raise field_error(
                    f"augmentation.{problem}",
                    "a range that views can be drawn from",
                    getattr(self.header.augmentation, problem),
                    where=where,
                )
        check_counts(self.counts, self.files, drawn=drawn, batch_size=self.header.batch_size, where=where)
        problem = self.coverage.problem(self.counts, self.header.classes)
        if problem is not None:
            raise field_error("coverage", problem, asdict(self.coverage), where=where)
        missing = [name for name in COMPONENTS if name not in self.components]
        if missing:
            raise field_error("components", f"the bytes of {missing[0]}", self.components, where=where)
        size = sum(entry.bytes for entry in self.files)
        if sum(self.components.values()) != size:
            raise field_error("components", f"a sum of {size}", sum(self.components.values()), where=where)


@dataclass(frozen=True, kw_only=True)
class _Document(PoolHeader):
    """pool.json as it stands: the header's fields beside the manifest's own."""

    format: str
    format_version: int
    views: Views
    codec: CodecEntry
    counts: Counts
    coverage: Coverage
    components: dict[Component, Count]
    content_digest: HexDigest
    files: tuple[FileEntry, ...]
    created_by: str


def _values(record: object, kind: type[Any], *but: str) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(kind) if field.name not in but}


def require_readable(header: PoolHeader, *, where: object) -> None:
    """Refuse, before any work is done, a header that readers refuse. where: the path of the new pool."""
    with _blame_writer():
        document = from_json(to_json(asdict(header)), where=str(where))
        convert(document, PoolHeader, where=str(where)).check(str(where))


def readable_text(manifest: Manifest, *, where: object) -> bytes:
    """Return the text of a manifest that is about to be published, known to be readable."""
    with _blame_writer():
        text = manifest.dump()
        Manifest.parse(text, where=str(where))
        return text


@contextlib.contextmanager
def _blame_writer() -> Iterator[None]:
    """Turn an error about a file into one about what the writer was given: there is no file yet."""
    try:
        yield
    except ManifestError as error:
        raise InvalidArgumentError(
            f"no reader would take this pool: {error.problem}",
            where=error.where,
            expected=error.expected,
            got=error.got,
            hint="nothing was published",
        ) from None


def ensemble_rule(words: str | None) -> EnsembleRule | None:
    """Return the rule that a manifest's words stand for, or None where they are not known."""
    for rule, known in ENSEMBLE_WORDS.items():
        if words == known:
            return rule
    return _OLDER_WORDS.get(words or "")


def require_normalisation(mean: Sequence[float], std: Sequence[float], *, where: object = "") -> None:
    """Refuse a mean or std that pixels cannot be normalised by: (x / 255 - mean) / std per channel."""
    for name, values, expected in (
        ("mean", mean, "3 finite numbers"),
        ("std", std, "3 finite numbers above 0"),
    ):
        sound = len(values) == 3 and all(math.isfinite(value) for value in values)
        if not sound or (values is std and min(values) <= 0):
            raise InvalidArgumentError(f"{name} is wrong", where=where, expected=expected, got=list(values))
