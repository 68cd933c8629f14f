"""The manifest: every field, its type and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import strict_json
from .errors import need, refuse
from .fields import Fields
from .files import FileEntry
from .names import ROLES, check_role_path, folded, regular_file

NAME = "pool.json"
MAX_FOOTER = 2**24
COMPONENTS = (
    "crop", "flip", "mix_index", "mix_strength", "mix_box", "labels", "codec", "packed", "keys", "container"
)  # fmt: skip


@dataclass(frozen=True)
class Teacher:
    """Who gave labels, and how it wanted its pixels."""

    name: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


@dataclass(frozen=True)
class Augmentation:
    """How views were drawn."""

    output_height: int
    output_width: int
    resize: str
    crop_scale: tuple[float, ...] | None
    crop_ratio: tuple[float, ...] | None
    flip_probability: float | None
    mix: str
    mix_alpha: float | None
    cutout_fraction: float | None
    patch_grid: int | None


@dataclass(frozen=True)
class Counts:
    """How much there is."""

    images: int
    epochs: int
    batches: int
    incomplete_batches: int
    rows: int


@dataclass(frozen=True)
class Coverage:
    """Views per image."""

    minimum: int
    maximum: int
    median: float
    images: int
    classes: int


@dataclass(frozen=True)
class Manifest:
    """The whole manifest, checked in itself."""

    classes: int
    batch_size: int
    label_kind: str
    seed: int | None
    teachers: tuple[Teacher, ...]
    augmentation: Augmentation
    drawn: bool
    codec_name: str
    codec_parameters: dict[str, Any]
    counts: Counts
    coverage: Coverage
    components: dict[str, int]
    content_digest: str
    files: tuple[FileEntry, ...]

    def of_role(self, role: str) -> list[FileEntry]:
        """List the files of a role in the manifest's order."""
        return [entry for entry in self.files if entry.role == role]


def _teacher(fields: Fields) -> Teacher:
    """Parse one teacher."""
    name = fields.string("name")
    fields.optional("weights_digest", fields.digest)
    mean = fields.optional("mean", lambda field: fields.numbers(field, 3))
    std = fields.optional("std", lambda field: fields.numbers(field, 3))
    need((mean is None) == (std is None), fields.file, fields.name("std"), "null, or not, beside mean")
    need(std is None or min(std) > 0, fields.file, fields.name("std"), "not above 0")
    fields.finish()
    return Teacher(name, mean, std)


def _check_drawable(how: Augmentation) -> None:
    """Refuse an augmentation that views cannot be drawn from."""
    for name, pair in (("crop_scale", how.crop_scale), ("crop_ratio", how.crop_ratio)):
        good = pair is None or 0 < pair[0] <= pair[1]
        need(good, NAME, f"augmentation.{name}", "not 0 < low <= high though views are drawn")
    small = how.crop_scale is None or how.crop_scale[1] <= 1
    need(small, NAME, "augmentation.crop_scale", "above 1 though views are drawn")
    for name, part in (("flip_probability", how.flip_probability), ("cutout_fraction", how.cutout_fraction)):
        need(part is None or 0 <= part <= 1, NAME, f"augmentation.{name}", "not from 0 to 1")
    known = how.mix == "none" or (how.mix_alpha is not None and how.mix_alpha > 0)
    need(known, NAME, "augmentation.mix_alpha", "not above 0 though mixed views are drawn")


def _augmentation(fields: Fields) -> Augmentation:
    """Parse the augmentation."""
    out = Augmentation(
        fields.integer("output_height", 1, 65535),
        fields.integer("output_width", 1, 65535),
        fields.string("resize"),
        fields.optional("crop_scale", lambda field: fields.numbers(field, 2)),
        fields.optional("crop_ratio", lambda field: fields.numbers(field, 2)),
        fields.optional("flip_probability", fields.number),
        fields.choice("mix", ("none", "cutmix", "mixup")),
        fields.optional("mix_alpha", fields.number),
        fields.optional("cutout_fraction", fields.number),
        fields.optional("patch_grid", lambda field: fields.integer(field, 1, 15)),
    )
    fields.finish()
    return out


def _lineage(fields: Fields) -> None:
    """Check one step of the lineage."""
    fields.string("operation")
    fields.optional("parent_digest", fields.digest)
    need(isinstance(fields.take("parameters"), dict), fields.file, fields.name("parameters"), "not an object")
    fields.finish()


def _counts(fields: Fields) -> Counts:
    """Parse the counts and refuse what cannot be."""
    names = ("epochs", "batches", "incomplete_batches", "rows")
    out = Counts(fields.integer("images", 0, 2**31 - 1), *(fields.integer(name) for name in names))
    need(out.incomplete_batches <= out.batches, NAME, "counts.incomplete_batches", "more than batches")
    need(out.epochs <= out.batches <= out.rows, NAME, "counts", "more epochs than batches than rows")
    need((out.epochs == 0) == (out.batches == 0) == (out.rows == 0), NAME, "counts", "0 and not 0")
    fields.finish()
    return out


def _coverage(fields: Fields, counts: Counts, classes: int) -> Coverage:
    """Parse the coverage and refuse what cannot be."""
    minimum, maximum = fields.integer("minimum"), fields.integer("maximum")
    out = Coverage(
        minimum, maximum, fields.number("median"), fields.integer("images"), fields.integer("classes")
    )
    need(minimum <= out.median <= maximum, NAME, "coverage.median", "not from minimum to maximum")
    need(out.images <= min(counts.images, counts.rows), NAME, "coverage.images", "more than there are")
    need(out.classes <= min(classes, out.images), NAME, "coverage.classes", "more than there are")
    fits = minimum * counts.images <= counts.rows <= maximum * counts.images
    need(fits, NAME, "coverage", "does not fit the rows")
    nothing = counts.images > 0 or minimum == maximum == 0
    need(nothing, NAME, "coverage", "not 0 though there are no images")
    fields.finish()
    return out


def _file(fields: Fields) -> FileEntry:
    """Parse one entry of `files`."""
    role = fields.choice("role", ROLES)
    path = fields.string("path")
    name = check_role_path(path, role, NAME, fields.name("path"))
    size, rows, digest = fields.integer("bytes"), fields.integer("rows", 0, 2**40), fields.digest("digest")
    most = min(max(size - 4, 0), MAX_FOOTER)
    footer_bytes = fields.optional("footer_bytes", lambda field: fields.integer(field, 12, most))
    footer_digest = fields.optional("footer_digest", fields.digest)
    null = role == "codec"
    for field, value in (("footer_bytes", footer_bytes), ("footer_digest", footer_digest)):
        need((value is None) == null, NAME, fields.name(field), "null for codec tables and only for them")
    need(not null or rows == 0, NAME, fields.name("rows"), "not 0 for a codec table")
    if role == "batches":
        need(digest.startswith(name), NAME, fields.name("path"), "not the start of the digest")
    fields.finish()
    return FileEntry(path, role, name, size, rows, digest, footer_bytes, footer_digest)


def _files(root: Fields, drawn: bool, counts: Counts, batch_size: int) -> tuple[FileEntry, ...]:
    """Parse `files` and check what it holds as a whole."""
    files = [_file(item) for item in root.children("files", 10**6)]
    seen: set[str] = set()
    for entry in files:
        need(folded(entry.path) not in seen, NAME, "files", f"{entry.path} occurs twice")
        seen.add(folded(entry.path))
    by_role = {role: [entry for entry in files if entry.role == role] for role in ROLES}
    for role in ("batches", "images"):
        need(len(by_role[role]) == 1, NAME, "files", f"not one file of role {role}")
    labels = [entry.name for entry in by_role["labels"]]
    views = [entry.name for entry in by_role["views"]]
    need(
        views == ([] if drawn else labels), NAME, "files", "views files are not those of the shards in order"
    )
    need(by_role["batches"][0].rows == counts.batches, NAME, "counts.batches", "not the batch index's rows")
    need(by_role["images"][0].rows == counts.images, NAME, "counts.images", "not the image table's rows")
    # every batch takes at least a byte of a labels file, which is not compressed: this bounds the index
    most = sum(entry.bytes for entry in by_role["labels"])
    need(counts.batches <= most, NAME, "counts.batches", "more than the labels files have bytes")
    most = 4 * by_role["images"][0].bytes
    need(counts.images <= most, NAME, "counts.images", "more than 4 for each byte of the image table")
    need(counts.rows <= counts.batches * batch_size, NAME, "counts.rows", "more than the batches can hold")
    if not drawn:
        total = sum(entry.rows for entry in by_role["views"])
        need(total == counts.rows, NAME, "counts.rows", "not the rows of the views files")
    if by_role["packed"]:
        total = sum(entry.rows for entry in by_role["packed"])
        need(total == counts.images, NAME, "counts.images", "not the rows of the packed files")
    return tuple(files)


def _components(fields: Fields, files: tuple[FileEntry, ...], drawn: bool) -> dict[str, int]:
    """Parse the components and refuse sums that cannot be."""
    out = {name: fields.integer(name) for name in COMPONENTS}
    fields.finish()
    need(
        sum(out.values()) == sum(e.bytes for e in files), NAME, "components", "do not sum to the files' bytes"
    )
    for role in ("codec", "packed"):
        total = sum(entry.bytes for entry in files if entry.role == role)
        need(out[role] == total, NAME, f"components.{role}", "not the bytes of its files")
    if drawn:
        for name in COMPONENTS[:5]:
            need(out[name] == 0, NAME, f"components.{name}", "not 0 though no views are stored")
    return out


def read_manifest(root: Path) -> Manifest:
    """Read and check `pool.json`."""
    real, size = regular_file(root, NAME)
    need(size <= strict_json.MAX_BYTES, NAME, "manifest", f"more than {strict_json.MAX_BYTES} bytes")
    with real.open("rb") as stream:
        data = stream.read(strict_json.MAX_BYTES + 1)
    top = Fields(strict_json.parse(data, NAME), NAME, "")
    need(top.take("format") == "lpld-label-pool", NAME, "format", "not lpld-label-pool")
    version = top.integer("format_version", 1)
    need(version == 1, NAME, "format_version", f"version {version} is not known")
    if not top.has("views"):
        refuse(NAME, "views", "missing: a draft of version 1, not a pool of version 1")
    classes, batch_size = top.integer("classes", 2, 2**24), top.integer("batch_size", 1, 2**16)
    need(classes * batch_size <= 2**25, NAME, "batch_size", "classes x batch_size is above 2^25")
    label_kind = top.choice("label_kind", ("logits", "probabilities"))
    seed = top.optional("seed", lambda field: top.integer(field, 0, 2**64 - 1))
    teachers = tuple(_teacher(item) for item in top.children("teachers"))
    top.optional("ensemble", top.string)
    augmentation = _augmentation(top.child("augmentation"))
    drawn = top.choice("views", ("stored", "drawn")) == "drawn"
    need(not drawn or seed is not None, NAME, "seed", "null though views are drawn")
    if drawn:
        _check_drawable(augmentation)
    for step in top.children("lineage"):
        _lineage(step)
    codec = top.child("codec")
    codec_name, parameters = codec.string("name"), codec.take("parameters")
    need(isinstance(parameters, dict), NAME, "codec.parameters", "not an object")
    codec.finish()
    counts = _counts(top.child("counts"))
    need(counts.rows <= counts.batches * batch_size, NAME, "counts.rows", "more than the batches can hold")
    coverage = _coverage(top.child("coverage"), counts, classes)
    files = _files(top, drawn, counts, batch_size)
    components = _components(top.child("components"), files, drawn)
    digest = top.digest("content_digest")
    top.string("created_by")
    top.finish()
    return Manifest(
        classes, batch_size, label_kind, seed, teachers, augmentation, drawn, codec_name, parameters,
        counts, coverage, components, digest, files,
    )  # fmt: skip
