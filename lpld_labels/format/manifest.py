"""The manifest: frozen records that describe a pool and its files, and their JSON form."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal, get_args

import msgspec

from lpld_labels.errors import InvalidArgumentError, ManifestError, PoolFormatError
from lpld_labels.format import limits
from lpld_labels.format.schema import (
    COMPONENTS,
    FORMAT_NAME,
    FORMAT_VERSION,
    Component,
    LabelKind,
    MixKind,
    Views,
    pool_path_problem,
    repeated_path,
)
from lpld_labels.format.strict_json import Count, HexDigest, convert, field_error, from_json, to_json

Side = Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_SIDE)]
Triple = Annotated[tuple[float, ...], msgspec.Meta(min_length=3, max_length=3)]
Pair = Annotated[tuple[float, ...], msgspec.Meta(min_length=2, max_length=2)]
FooterBytes = Annotated[int, msgspec.Meta(ge=limits.MIN_FOOTER_BYTES, le=limits.MAX_FOOTER_BYTES)]
Rows = Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_ROWS)]
FileRole = Literal["views", "labels", "batches", "images", "codec", "packed"]
FILE_ROLES: tuple[FileRole, ...] = get_args(FileRole)
# The bytes of views and labels files belong to several components and are counted per column.
FILE_COMPONENTS: dict[FileRole, Component] = {
    "batches": "container",
    "images": "container",
    "codec": "codec",
    "packed": "packed",
}
EnsembleRule = Literal["average", "norm-scaled"]
Problem = tuple[str, object, object]  # Field, expected, got.

ENSEMBLE_WORDS: Mapping[EnsembleRule, str] = {
    "norm-scaled": "mean of logits scaled to the teachers' mean Frobenius norm per batch",
    "average": "plain mean of logits",
}
"""The value of `PoolHeader.ensemble` for each rule."""


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A network that produced the labels.

    name: the name to load the network by, e.g. ``resnet18`` or ``timm:resnet50``.
    weights_digest: hex SHA-256 of the network's weights, or None if unknown (imported pools).
    mean, std: per-channel normalisation of pixels scaled to 0..1; None if unknown.
    """

    name: str
    weights_digest: HexDigest | None = None
    mean: Triple | None = None
    std: Triple | None = None


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """How views were drawn and rendered.

    output_height, output_width: size of a view in pixels.
    resize: name of the resize backend (see lpld_labels.render), e.g. ``torch`` or ``pil``.
    crop_scale, crop_ratio: bounds (low, high) of area share and aspect ratio in RandomResizedCrop.
    flip_probability, mix, mix_alpha, cutout_fraction, patch_grid: None or "none" if not used.
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
    patch_grid: Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_PATCH_GRID)] | None = None

    def drawing_problem(self) -> tuple[str, str] | None:
        """Return (name, expected value) of a field that prevents drawing views, or None if there is none."""
        flip, cutout = self.flip_probability, self.cutout_fraction
        grid, most = self.patch_grid, limits.MAX_PATCH_GRID
        rules = (
            ("crop_scale", _is_range(self.crop_scale, 1.0), "(low, high) with 0 < low <= high <= 1"),
            ("crop_ratio", _is_range(self.crop_ratio, math.inf), "(low, high) with 0 < low <= high"),
            ("flip_probability", flip is None or 0 <= flip <= 1, "0 to 1"),
            ("cutout_fraction", cutout is None or 0 < cutout <= 1, "above 0, at most 1"),
            ("mix", self.mix in get_args(MixKind), "none, cutmix or mixup"),
            ("mix_alpha", self.mix == "none" or (self.mix_alpha or 0) > 0, "a number above 0"),
            ("patch_grid", grid is None or 1 <= grid <= most, f"1 to {most}"),
        )
        return next(((name, expected) for name, good, expected in rules if not good), None)


def _is_range(bounds: tuple[float, ...] | None, upper: float) -> bool:
    return bounds is None or (len(bounds) == 2 and 0 < bounds[0] <= bounds[1] <= upper)


@dataclass(frozen=True, kw_only=True)
class LineageStep:
    """One operation in the history of a pool, e.g. prune, encode or import."""

    operation: str
    parent_digest: HexDigest | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PoolHeader:
    """Properties of all batches of a pool, fixed before the first batch is written.

    classes: number of label columns. batch_size: rows in a complete batch. seed: None if unknown.
    ensemble: how the outputs of several teachers were combined, None for a single teacher.
    """

    classes: Annotated[int, msgspec.Meta(ge=2, le=limits.MAX_CLASSES)]
    batch_size: Annotated[int, msgspec.Meta(ge=1, le=limits.MAX_BATCH_SIZE)]
    augmentation: Augmentation
    label_kind: LabelKind = "logits"
    seed: int | None = None
    teachers: tuple[Teacher, ...] = ()
    ensemble: str | None = None
    lineage: tuple[LineageStep, ...] = ()

    def problems(self) -> Iterator[Problem]:
        most = limits.MAX_BATCH_VALUES // self.classes
        if self.batch_size > most:
            yield "batch_size", f"1 to {most}", self.batch_size
        if self.seed is not None and not 0 <= self.seed <= limits.MAX_SEED:
            yield "seed", f"0 to {limits.MAX_SEED}", self.seed
        for number, teacher in enumerate(self.teachers):
            if (teacher.mean is None) != (teacher.std is None):
                yield f"teachers[{number}].std", "null if mean is null, else 3 numbers", teacher.std
            if teacher.std is not None and min(teacher.std) <= 0:
                yield f"teachers[{number}].std", "3 numbers above 0", teacher.std


@dataclass(frozen=True, kw_only=True)
class CodecEntry:
    """The name of a codec and the parameters that its decoder needs."""

    name: str
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the pool.

    path: relative to the pool. rows: number of rows, 0 for codec tables. digest: hex SHA-256 of the file.
    footer_bytes, footer_digest: size and hex SHA-256 of the Parquet footer (from the metadata to the end of
        the file); None for codec tables.
    """

    path: str
    role: FileRole
    bytes: Count
    rows: Rows
    digest: HexDigest
    footer_bytes: FooterBytes | None = None
    footer_digest: HexDigest | None = None

    def problems(self) -> Iterator[Problem]:
        wrong_path = pool_path_problem(self.path, self.role)
        if wrong_path is not None:
            yield "path", wrong_path, self.path
        table = self.role == "codec"
        if (self.footer_bytes is None) != table or (self.footer_digest is None) != table:
            yield "footer_bytes", "null for codec tables, a value for other files", self.footer_bytes
        if self.footer_bytes is not None and self.footer_bytes > self.bytes:
            yield "footer_bytes", f"at most {self.bytes}", self.footer_bytes
        if table and self.rows:
            yield "rows", "0 for codec tables", self.rows
        if self.role == "batches" and not self.path.startswith(f"batches-{self.digest[:8]}."):
            yield "path", "a name with the first 8 digits of the file's digest", self.path


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of images (in the image table), epochs (with at least one batch), batches and rows."""

    images: Annotated[int, msgspec.Meta(ge=0, le=limits.MAX_IMAGES)]
    epochs: Rows
    batches: Rows
    incomplete_batches: Rows
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How many views an image has (mix partners do not count), and how many images and classes have views."""

    minimum: Count
    median: float
    maximum: Count
    images: Count
    classes: Count

    def problems(self, counts: Counts, classes: int) -> Iterator[Problem]:
        rules = (
            (self.minimum <= self.median <= self.maximum, "minimum <= median <= maximum"),
            (self.images <= counts.images and self.classes <= classes, "at most as many as the pool has"),
            (self.classes <= self.images, "no more classes than images"),
            (self.maximum <= counts.rows, "maximum <= rows"),
            ((self.minimum > 0) == (0 < counts.images == self.images), "minimum > 0 iff all images appear"),
            ((self.images > 0) == (counts.rows > 0), "images > 0 if rows > 0, else 0"),
        )
        for holds, expected in rules:
            if not holds:
                yield "coverage", expected, asdict(self)


def _file_problems(files: Sequence[FileEntry], *, drawn: bool) -> Iterator[Problem]:
    if len(files) > limits.MAX_FILES:
        yield "files", f"at most {limits.MAX_FILES} files", len(files)
    names: dict[str, list[str]] = {role: [] for role in FILE_ROLES}
    for number, entry in enumerate(files):
        for name, wanted, got in entry.problems():
            yield f"files[{number}].{name}", wanted, got
        names[entry.role].append(entry.path.rsplit("/", 1)[-1])
    for role in ("batches", "images"):
        if len(names[role]) != 1:
            yield "files", f"one file of role {role}", len(names[role])
    twice = repeated_path(entry.path for entry in files)
    if twice is not None:
        yield "files", "no path twice, ignoring case", twice
    if names["views"] != ([] if drawn else names["labels"]):
        expected = "no views files, because views are drawn" if drawn else "a views file for each labels file"
        yield "files", expected, f"{names['views'][:5]} and {names['labels'][:5]}"


def _count_problems(
    counts: Counts, files: Sequence[FileEntry], *, drawn: bool, batch_size: int
) -> Iterator[Problem]:
    """Compare `counts` with the rows and bytes in the entries of files. No file is opened."""
    rows: dict[str, int] = dict.fromkeys(FILE_ROLES, 0)
    size: dict[str, int] = dict.fromkeys(FILE_ROLES, 0)
    for entry in files:
        rows[entry.role] += entry.rows
        size[entry.role] += entry.bytes
    stated = [("batches", "batches"), ("images", "images")]
    stated += [] if drawn else [("rows", "views")]
    stated += [("images", "packed")] if size["packed"] else []
    for name, role in stated:
        if getattr(counts, name) != rows[role]:
            yield f"counts.{name}", f"{rows[role]}, the number of rows of {role}", getattr(counts, name)
    per_byte = limits.MAX_IMAGES_PER_BYTE
    for name, most, why in (
        ("batches", size["labels"], "one for each byte of labels"),
        ("images", per_byte * size["images"], f"{per_byte} for each byte of its table"),
        ("rows", counts.batches * batch_size, "batches times batch size"),
        ("epochs", counts.batches, "one for each batch"),
        ("incomplete_batches", counts.batches, "one for each batch"),
    ):
        if getattr(counts, name) > most:
            yield f"counts.{name}", f"at most {most}: {why}", getattr(counts, name)


def _raise_first(problems: Iterator[Problem], where: str) -> None:
    for name, expected, got in problems:
        raise field_error(name, expected, got, where=where)


@dataclass(frozen=True, kw_only=True)
class _Contents:
    views: Views
    codec: CodecEntry
    counts: Counts
    coverage: Coverage
    components: dict[Component, Count]
    content_digest: HexDigest
    files: tuple[FileEntry, ...]
    created_by: str


@dataclass(frozen=True, kw_only=True)
class _Document(PoolHeader, _Contents):
    """The flat object in pool.json, with the fields of the header and of the contents."""

    format: str
    format_version: int


@dataclass(frozen=True, kw_only=True)
class Manifest(_Contents):
    """The contents of pool.json. views: whether views are stored in files or drawn by the reader."""

    header: PoolHeader
    views: Views = "stored"

    def files_of(self, role: FileRole) -> Sequence[FileEntry]:
        return self._by_role.get(role, ())

    @cached_property
    def _by_role(self) -> dict[FileRole, list[FileEntry]]:
        """File entries by role. Cached, because readers look up an entry whenever they open a file."""
        files: dict[FileRole, list[FileEntry]] = {}
        for entry in self.files:
            files.setdefault(entry.role, []).append(entry)
        return files

    def dump(self) -> bytes:
        """Return the JSON form: UTF-8, sorted keys, one trailing newline."""
        contents = asdict(self)
        header = contents.pop("header")
        return to_json({"format": FORMAT_NAME, "format_version": FORMAT_VERSION, **header, **contents})

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
            raise PoolFormatError(
                "pool was written in a newer format",
                where=where,
                expected=f"format_version <= {FORMAT_VERSION}",
                got=version,
                hint="upgrade lpld-labels",
            )
        flat = convert(document, _Document, where=where)
        manifest = Manifest(header=PoolHeader(**_values(flat, PoolHeader)), **_values(flat, _Contents))
        _raise_first(manifest._problems(), where)
        return manifest

    def _problems(self) -> Iterator[Problem]:
        header, drawn = self.header, self.views == "drawn"
        yield from header.problems()
        yield from _file_problems(self.files, drawn=drawn)
        if drawn:
            if header.seed is None:
                yield "seed", "a number, because views are drawn", None
            wrong = header.augmentation.drawing_problem()
            if wrong is not None:
                name, expected = wrong
                yield f"augmentation.{name}", expected, getattr(header.augmentation, name)
        yield from _count_problems(self.counts, self.files, drawn=drawn, batch_size=header.batch_size)
        yield from self.coverage.problems(self.counts, header.classes)
        missing = [name for name in COMPONENTS if name not in self.components]
        if missing:
            yield "components", f"an entry '{missing[0]}'", self.components
        size, stated = sum(entry.bytes for entry in self.files), sum(self.components.values())
        if stated != size:
            yield "components", f"a sum of {size}, the bytes of all files", stated


def _values(record: object, kind: type[Any]) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(kind)}


def require_readable(header: PoolHeader, *, where: object) -> None:
    """Validate a header before any work is done. where: the path of the new pool."""
    with _blame_writer():
        document = from_json(to_json(asdict(header)), where=str(where))
        _raise_first(convert(document, PoolHeader, where=str(where)).problems(), str(where))


def readable_text(manifest: Manifest, *, where: object) -> bytes:
    """Validate a manifest before it is published, and return its text."""
    with _blame_writer():
        text = manifest.dump()
        Manifest.parse(text, where=str(where))
        return text


@contextlib.contextmanager
def _blame_writer() -> Iterator[None]:
    """Convert a ManifestError into an InvalidArgumentError: there is no file yet that could be corrupt."""
    try:
        yield
    except ManifestError as error:
        problem = f"no reader would accept this pool: {error.problem}"
        parts = {**error.parts(), "problem": problem, "hint": "nothing was published"}
        raise InvalidArgumentError(**parts) from None


def ensemble_rule(words: str | None) -> EnsembleRule | None:
    """Return the rule for a value of `PoolHeader.ensemble`, or None if the value is unknown."""
    return next((rule for rule, known in ENSEMBLE_WORDS.items() if known == words), None)


def require_normalisation(mean: Sequence[float], std: Sequence[float], *, where: object = "") -> None:
    """Require that mean and std are three finite numbers each, and that the numbers in std are above 0."""
    for name, values, expected in (
        ("mean", mean, "3 finite numbers"),
        ("std", std, "3 finite numbers above 0"),
    ):
        sound = len(values) == 3 and all(math.isfinite(value) for value in values)
        if not sound or (values is std and min(values) <= 0):
            raise InvalidArgumentError(f"{name} is wrong", where=where, expected=expected, got=list(values))
