"""Parquet schemas of the pool's files, and the comparison of a footer's schema with them."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import need
from .thrift import Struct, integer, optional_integer, text

BOOLEAN, INT32, INT64, FLOAT, DOUBLE, BYTES, FIXED = 0, 1, 2, 4, 5, 6, 7
REQUIRED, OPTIONAL, REPEATED = 0, 1, 2
# annotation: (converted type, logical type); the older one may be missing beside the newer and the other way
_ANNOTATIONS: dict[str, tuple[int | None, Struct | None]] = {
    "": (None, None),
    "STRING": (0, {1: {}}),
    "LIST": (3, {3: {}}),
    "UINT8": (11, {10: {1: 8, 2: False}}),
    "FLOAT16": (None, {15: {}}),
}


@dataclass(frozen=True)
class Node:
    """One element of a schema; a group has children."""

    name: str
    repetition: int = REQUIRED
    physical: int | None = None
    length: int | None = None
    annotation: str = ""
    children: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Leaf:
    """One column as the pages see it."""

    path: tuple[str, ...]
    physical: int
    length: int
    max_definition: int
    max_repetition: int

    @property
    def name(self) -> str:
        """Give the top-level name."""
        return self.path[0]

    @property
    def dotted(self) -> str:
        """Give the full name for messages."""
        return ".".join(self.path)


def leaves(nodes: tuple[Node, ...]) -> list[Leaf]:
    """Flatten a schema into its columns."""
    out: list[Leaf] = []

    def walk(node: Node, path: tuple[str, ...], definition: int, repetition: int) -> None:
        """Visit a node with the levels above it."""
        path = (*path, node.name)
        definition += node.repetition != REQUIRED
        repetition += node.repetition == REPEATED
        if node.physical is not None:
            out.append(Leaf(path, node.physical, node.length or 0, definition, repetition))
        for inner in node.children:
            walk(inner, path, definition, repetition)

    for node in nodes:
        walk(node, (), 0, 0)
    return out


def _flatten(node: Node) -> list[Node]:
    """List a node and everything below it, depth first, as Parquet stores schemas."""
    return [node, *(deep for inner in node.children for deep in _flatten(inner))]


def _annotation_fits(found: Struct, wanted: str) -> bool:
    """Compare an element's annotation, in the old notation, the new one or both."""
    converted, logical = _ANNOTATIONS[wanted]
    has_converted, has_logical = found.get(6), found.get(10)
    if has_converted is None and has_logical is None:
        return wanted == ""
    return has_converted in (None, converted) and has_logical in (None, logical)


def check_schema(elements: list[Struct], nodes: tuple[Node, ...], file: str) -> None:
    """Refuse a schema that is not exactly the one given; the root's name does not matter."""
    wanted = [deep for node in nodes for deep in _flatten(node)]
    need(len(elements) == len(wanted) + 1, file, "schema", "another number of columns")
    need(optional_integer(elements[0], 5, "num_children") == len(nodes), file, "schema", "another root")
    need(1 not in elements[0], file, "schema", "a root with a type")
    for found, want in zip(elements[1:], wanted, strict=True):
        name = text(found, 4, "name")
        need(name == want.name, file, "schema", f"column {name!r} where {want.name!r} belongs")
        field = f"schema of {want.name}"
        need(integer(found, 3, "repetition_type") == want.repetition, file, field, "another repetition")
        need(optional_integer(found, 1, "type") == want.physical, file, field, "another physical type")
        children = optional_integer(found, 5, "num_children") or 0
        need(children == len(want.children), file, field, "another number of children")
        if want.physical == FIXED:
            need(optional_integer(found, 2, "type_length") == want.length, file, field, "another length")
        need(_annotation_fits(found, want.annotation), file, field, "another logical type")


def column(name: str, physical: int, *, optional: bool = False, length: int | None = None) -> Node:
    """Make a plain column."""
    return Node(name, OPTIONAL if optional else REQUIRED, physical, length)


def list_column(name: str, element: Node, *, optional: bool = False) -> Node:
    """Make a list column in Parquet's three levels."""
    inner = Node("list", REPEATED, children=(element,))
    return Node(name, OPTIONAL if optional else REQUIRED, annotation="LIST", children=(inner,))


def string_column(name: str) -> Node:
    """Make a required string column."""
    return Node(name, REQUIRED, BYTES, annotation="STRING")


def _uint8(name: str, *, optional: bool) -> Node:
    """Make an unsigned 8-bit column on int32."""
    return Node(name, OPTIONAL if optional else REQUIRED, INT32, annotation="UINT8")


KEYS = (column("epoch", INT32), column("batch", INT32))
SLOT = column("slot", INT32)
MIX_BOX = ("mix_top", "mix_left", "mix_bottom", "mix_right")
CUTOUT_BOX = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
FILLS = ("cutout_red", "cutout_green", "cutout_blue")

VIEWS = (
    *KEYS,
    SLOT,
    *(column(n, INT32) for n in ("image", "crop_top", "crop_left", "crop_height", "crop_width")),
    column("flip", BOOLEAN),
    column("mix_slot", INT32, optional=True),
    column("mix_strength", DOUBLE, optional=True),
    *(column(n, INT32, optional=True) for n in (*MIX_BOX, *CUTOUT_BOX)),
    *(_uint8(n, optional=True) for n in FILLS),
    list_column("patch_order", _uint8("element", optional=False), optional=True),
)
IMAGES = (
    column("image", INT32),
    string_column("path"),
    *(column(n, INT32) for n in ("class", "width", "height")),
    column("digest", FIXED, optional=True, length=16),
)
PACKED = (
    column("row", INT32),
    Node("image", children=(column("bytes", BYTES), string_column("path"))),
    column("class", INT32),
)
BATCHES = (
    *KEYS,
    *(column(n, INT32) for n in ("rows", "shard", "position")),
    column("first_row", INT64),
    column("group_offset", INT64),
    column("group_bytes", INT32),
    column("label_bytes", INT32),
    column("mix_strength", DOUBLE, optional=True),
    column("views_digest", FIXED, length=8),
    column("digest", FIXED, length=16),
)
