"""What a manifest says about the pool's files: which, how large, how to prove them, and what they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import msgspec

from lpld_labels.errors import ManifestError
from lpld_labels.format.json_records import Count, HexDigest, field_error
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

Rows = Annotated[int, msgspec.Meta(ge=0, le=MAX_ROWS)]
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


@dataclass(frozen=True, kw_only=True)
class FileEntry:
    """One file of the pool.

    path: below the pool. rows: of a Parquet file, 0 for codec tables. digest: hex SHA-256 of its bytes.
    footer_bytes, footer_digest: length and hex SHA-256 of its last bytes, from where Parquet's metadata
        begin; None for codec tables.
    """

    path: str
    role: FileRole
    bytes: Count
    rows: Rows
    digest: HexDigest
    footer_bytes: Annotated[int, msgspec.Meta(ge=MIN_FOOTER_BYTES, le=MAX_FOOTER_BYTES)] | None = None
    footer_digest: HexDigest | None = None

    def problem(self) -> tuple[str, str] | None:
        """Return a field that does not fit the others and what it should be, or None."""
        wrong_path = pool_path_problem(self.path, self.role)
        if wrong_path is not None:
            return "path", wrong_path
        table = self.role == "codec"
        if (self.footer_bytes is None) != table or (self.footer_digest is None) != table:
            return "footer_bytes", "null for codec tables and no other file"
        if self.footer_bytes is not None and self.footer_bytes > self.bytes:
            return "footer_bytes", f"at most {self.bytes}"
        if table and self.rows:
            return "rows", "0 for codec tables"
        if self.role == "batches" and not self.path.startswith(f"batches-{self.digest[:8]}."):
            return "path", "a name with the first 8 digits of its digest"
        return None


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How much there is: images in the table, epochs that have a batch, batches, rows."""

    images: Annotated[int, msgspec.Meta(ge=0, le=MAX_IMAGES)]
    epochs: Rows
    batches: Rows
    incomplete_batches: Rows
    rows: Rows


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """How often images were looked at, as themselves and not as a mixing partner.

    minimum, median, maximum: views per image. images, classes: how many have at least one view.
    """

    minimum: Count
    median: float
    maximum: Count
    images: Count
    classes: Count

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


def check_files(files: Sequence[FileEntry], *, drawn: bool, where: str) -> None:
    """Refuse a list of files that does not make a pool."""

    def wrong(expected: str, got: object) -> ManifestError:
        return field_error("files", expected, got, where=where)

    if len(files) > MAX_FILES:
        raise wrong(f"at most {MAX_FILES} files", len(files))
    names: dict[str, list[str]] = {role: [] for role in FILE_ROLES}
    for number, entry in enumerate(files):
        problem = entry.problem()
        if problem is not None:
            name, expected = problem
            raise field_error(f"files[{number}].{name}", expected, getattr(entry, name), where=where)
        names[entry.role].append(entry.path.rsplit("/", 1)[-1])
    for role in ("batches", "images"):
        if len(names[role]) != 1:
            raise wrong(f"one file of role {role}", len(names[role]))
    twice = repeated_path(entry.path for entry in files)
    if twice is not None:
        raise wrong("every path once, whatever its case", twice)
    wanted = [] if drawn else names["labels"]
    if names["views"] != wanted:
        expected = "no views files, because views are drawn" if drawn else "a views file for each labels file"
        raise wrong(expected, f"{names['views'][:5]} and {names['labels'][:5]}")


def check_counts(
    counts: Counts, files: Sequence[FileEntry], *, drawn: bool, batch_size: int, where: str
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
            raise field_error(
                f"counts.{name}", f"the {rows[role]} rows of {role}", getattr(counts, name), where=where
            )
    for name, most, why in (
        ("batches", size["labels"], "one for each byte of labels"),
        ("images", MAX_IMAGES_PER_BYTE * size["images"], f"{MAX_IMAGES_PER_BYTE} for each byte of its table"),
        ("rows", counts.batches * batch_size, "what the batches can hold"),
        ("epochs", counts.batches, "one for each batch"),
        ("incomplete_batches", counts.batches, "one for each batch"),
    ):
        if getattr(counts, name) > most:
            raise field_error(f"counts.{name}", f"at most {most}: {why}", getattr(counts, name), where=where)
