"""What a manifest says about the pool's files: which, how large, how to prove them, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from lpld_labels.format.json_fields import FieldReader
from lpld_labels.format.limits import (
    MAX_FILES,
    MAX_FOOTER_BYTES,
    MAX_IMAGES,
    MAX_IMAGES_PER_BYTE,
    MAX_ROWS,
    MIN_FOOTER_BYTES,
)
from lpld_labels.format.paths import pool_path_problem, repeated_path
from lpld_labels.format.schema import Component

FileRole = Literal["views", "labels", "batches", "images", "codec", "packed"]
FILE_ROLES: tuple[FileRole, ...] = ("views", "labels", "batches", "images", "codec", "packed")
FILE_COMPONENTS: dict[FileRole, Component] = {
    "batches": "container",
    "images": "container",
    "codec": "codec",
    "packed": "packed",
}
"""The component of files that belong to one as a whole; those of shards are weighed column by column."""


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
    """One file of the pool.

    path: below the pool. rows: of a Parquet file, 0 for codec tables. digest: hex SHA-256 of its bytes.
    footer_bytes, footer_digest: length and hex SHA-256 of its last bytes, from where Parquet's metadata
        begin; None for codec tables.
    """

    path: str
    role: FileRole
    bytes: int
    rows: int
    digest: str
    footer_bytes: int | None = None
    footer_digest: str | None = None

    @staticmethod
    def parse(reader: FieldReader) -> FileEntry:
        """Read one of `files`."""
        role: Any = reader.text("role", choices=FILE_ROLES)
        path = reader.text("path")
        problem = pool_path_problem(path, role)
        if problem is not None:
            raise reader.error("path", problem, repr(path[:200]))
        size = reader.integer("bytes")
        footer_bytes = reader.optional(
            "footer_bytes",
            lambda n: reader.integer(n, minimum=MIN_FOOTER_BYTES, maximum=min(size, MAX_FOOTER_BYTES)),
        )
        footer_digest = reader.optional("footer_digest", reader.digest)
        table = role == "codec"
        if (footer_bytes is None) != table or (footer_digest is None) != table:
            raise reader.error("footer_bytes", "null for codec tables and no other file", footer_bytes)
        digest = reader.digest("digest")
        if role == "batches" and not path.startswith(f"batches-{digest[:8]}."):
            raise reader.error("path", "a name with the first 8 digits of its digest", repr(path))
        return FileEntry(
            path=path,
            role=role,
            bytes=size,
            rows=reader.integer("rows", maximum=0 if table else MAX_ROWS),
            digest=digest,
            footer_bytes=footer_bytes,
            footer_digest=footer_digest,
        )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much there is: images in the table, epochs that have a batch, batches, rows."""

    images: int
    epochs: int
    batches: int
    incomplete_batches: int
    rows: int

    @staticmethod
    def parse(reader: FieldReader) -> Counts:
        images = reader.integer("images", maximum=MAX_IMAGES)
        others = [f.name for f in fields(Counts) if f.name != "images"]
        return Counts(images=images, **{name: reader.integer(name, maximum=MAX_ROWS) for name in others})


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How often images were looked at, as themselves and not as a mixing partner.

    minimum, median, maximum: views per image. images, classes: how many have at least one view.
    """

    minimum: int
    median: float
    maximum: int
    images: int
    classes: int

    @staticmethod
    def parse(reader: FieldReader) -> Coverage:
        return Coverage(
            minimum=reader.integer("minimum"),
            median=reader.number("median"),
            maximum=reader.integer("maximum"),
            images=reader.integer("images"),
            classes=reader.integer("classes"),
        )

    def problem(self, counts: Counts, classes: int) -> str | None:
        """Return what cannot be of a pool of so much, or None."""
        rules = (
            (self.minimum <= self.median <= self.maximum, "minimum <= median <= maximum"),
            (self.images <= counts.images and self.classes <= classes, "no more than there are"),
            (self.classes <= self.images, "no more classes than images"),
            (self.maximum <= counts.rows, "no more views than rows"),
            ((self.minimum > 0) == (0 < counts.images == self.images), "a view of each image or none"),
            ((self.images > 0) == (counts.rows > 0), "images where there are rows"),
        )
        return next((expected for kept, expected in rules if not kept), None)


def check_files(files: Sequence[FileEntry], *, drawn: bool, reader: FieldReader) -> None:
    """Refuse a list of files that does not make a pool."""
    if len(files) > MAX_FILES:
        raise reader.error("files", f"at most {MAX_FILES} files", len(files))
    names: dict[str, list[str]] = {role: [] for role in FILE_ROLES}
    for entry in files:
        names[entry.role].append(entry.path.rsplit("/", 1)[-1])
    for role in ("batches", "images"):
        if len(names[role]) != 1:
            raise reader.error("files", f"one file of role {role}", len(names[role]))
    twice = repeated_path(entry.path for entry in files)
    if twice is not None:
        raise reader.error("files", "every path once, whatever its case", twice)
    wanted = [] if drawn else names["labels"]
    if names["views"] != wanted:
        expected = "no views files, because views are drawn" if drawn else "a views file for each labels file"
        raise reader.error("files", expected, f"{names['views'][:5]} and {names['labels'][:5]}")


def check_counts(
    counts: Counts, files: Sequence[FileEntry], *, drawn: bool, batch_size: int, reader: FieldReader
) -> None:
    """Refuse counts that files of these rows and bytes do not have, before any of them is opened."""
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
            raise reader.error(f"counts.{name}", f"the {rows[role]} rows of {role}", getattr(counts, name))
    for name, most, why in (
        ("batches", size["labels"], "one for each byte of labels"),
        ("images", MAX_IMAGES_PER_BYTE * size["images"], f"{MAX_IMAGES_PER_BYTE} for each byte of its table"),
        ("rows", counts.batches * batch_size, "what the batches can hold"),
        ("epochs", counts.batches, "one for each batch"),
        ("incomplete_batches", counts.batches, "one for each batch"),
    ):
        if getattr(counts, name) > most:
            raise reader.error(f"counts.{name}", f"at most {most}: {why}", getattr(counts, name))
