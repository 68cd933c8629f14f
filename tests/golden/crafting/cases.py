"""What a case is, the list of all cases, and the changes that most of them consist of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tests.golden.crafting.crafted import Crafted

Stage = Literal["open", "read", "verify"]
"""When a reader must refuse at the latest: opening the pool, using it (images, batches), or `verify`."""
Change = Callable[[Crafted], object]
MISSING = object()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One pool to refuse: made of golden pool `base` by `change`; `reason` is for people."""

    name: str
    base: str
    stage: Stage
    reason: str
    change: Change


CASES: list[Case] = []


def register(
    *rows: tuple[str, str, Change], base: str = "f16-plain", stage: Stage = "open", prefix: str = ""
) -> None:
    """Add a case for each (name, reason, change)."""
    for name, reason, change in rows:
        CASES.append(Case(name=prefix + name, base=base, stage=stage, reason=reason, change=change))


def case(
    name: str, reason: str, *, base: str = "f16-plain", stage: Stage = "open"
) -> Callable[[Change], None]:
    """Add the decorated function as a case."""
    return lambda change: register((name, reason, change), base=base, stage=stage)


def in_order(*changes: Change) -> Change:
    return lambda pool: [change(pool) for change in changes]


def field(place: str, value: object) -> Change:
    """Set a field of the manifest, such as "teachers 0 std"; MISSING removes it, a function is called."""

    def change(pool: Crafted) -> None:
        target: Any = pool.manifest
        *steps, last = [int(word) if word.isdecimal() else word for word in place.split()]
        for step in steps:
            target = target[step]
        if value is MISSING:
            del target[last]
        else:
            target[last] = value(target[last]) if callable(value) else value

    return change


def entry(role: str, name: str, value: object) -> Change:
    """Set what the manifest says of the first file of a role."""
    return lambda pool: pool.entry(role).update({name: value})


def first(change: Callable[[Any], Any]) -> Callable[[list[Any]], None]:
    """Change the first value of a column."""

    def edit(values: list[Any]) -> None:
        values[0] = change(values[0])

    return edit


def every(value: object) -> Callable[[list[Any]], None]:
    """Set all values of a column."""

    def edit(values: list[Any]) -> None:
        values[:] = [value] * len(values)

    return edit


def column(role: str, name: str, edit: Callable[[list[Any]], None]) -> Change:
    return lambda pool: pool.change(role, name, edit)


def table(role: str, change: Callable[[pa.Table], pa.Table] = lambda table: table, **settings: Any) -> Change:
    """Change a table, or the settings it is written with."""
    return lambda pool: pool.put(role, change(pool.table(role)), **settings)


def file(role: str, change: Callable[[bytes], bytes], *, signed: bool = True) -> Change:
    """Change the bytes of a file."""

    def edit(pool: Crafted) -> None:
        pool.files[pool.path(role)] = change(pool.files[pool.path(role)])
        if signed:
            pool.sign()

    return edit


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :]
