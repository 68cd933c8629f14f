"""A picture of which pool came from which."""

from __future__ import annotations

from collections.abc import Sequence

from lpld_labels.inspect.comparison.relations import Relation
from lpld_labels.inspect.pages.charts import WIDTH
from lpld_labels.inspect.pages.markup import Markup, shortened, tag

_ROW, _INDENT, _DEEPEST = 46, 34, 5
_FROM = ("pruned", "encoded", "derived")


def parent_of(name: str, relations: Sequence[Relation]) -> Relation | None:
    """Return the relation to the nearest pool that this one came from: the one that has no other between."""
    found = [r for r in relations if r.second == name and r.kind in _FROM]
    parents = {relation.first for relation in found}
    for relation in found:
        between = {r.first for r in relations if r.kind in _FROM and r.second in parents - {relation.first}}
        if relation.first not in between:
            return relation
    return None


def family(names: Sequence[str], relations: Sequence[Relation]) -> Markup:
    """Return a tree: each pool below the one it came from, with how it was made."""
    placed: list[tuple[str, int, Relation | None]] = []

    def place(name: str, depth: int) -> None:
        placed.append((name, depth, parent_of(name, relations)))
        for other in names:
            relation = parent_of(other, relations)
            if relation is not None and relation.first == name:
                place(other, depth + 1)

    for name in names:
        if parent_of(name, relations) is None:
            place(name, 0)
    parts: list[str] = []
    rows: dict[str, int] = {}
    for number, (name, depth, relation) in enumerate(placed):
        left, top = min(depth, _DEEPEST) * _INDENT + 1, number * _ROW + 4
        rows[name] = number
        if relation is not None:
            above = rows[relation.first] * _ROW + 34
            elbow = left - _INDENT + 14
            parts.append(tag("path", d=f"M{elbow} {above}V{top + 15}H{left}", class_="axis"))
        what = "" if relation is None else f" ({relation.kind} from {relation.first})"
        parts.append(tag("rect", x=left, y=top, width=WIDTH - left - 1, height=30, rx=5, class_="mark box"))
        text = shortened(name + what, 58 - 4 * min(depth, _DEEPEST))
        parts.append(tag("text", tag("title", name + what), text, x=left + 10, y=top + 20))
    title = "Family of the pools"
    return tag(
        "svg",
        tag("title", title),
        tag("desc", "Each pool below the one it came from; the sentences above say the same."),
        *parts,
        class_="flow",
        viewBox=f"0 0 {WIDTH} {len(placed) * _ROW}",
        role="group",
        aria_label=title,
        data_marks=len(placed),
    )
