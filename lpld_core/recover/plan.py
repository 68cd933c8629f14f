"""Which images are optimised together: units that share statistics, groups that share a forward pass.

The plan follows from method, class count, images per class and sizes alone. Every group can be
made on its own, so processes can share the work and a killed run goes on at the next group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lpld_labels.exec.pieces import require_listable


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Images whose BatchNorm statistics are matched together and that share a view.

    key: names the unit's random draws. members: (class, number within the class) of each image.
    """

    key: tuple[int, int]
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Units that go through the teacher in one forward pass."""

    index: int
    units: tuple[Unit, ...]

    @property
    def members(self) -> tuple[tuple[int, int], ...]:
        """(class, number) of all images, unit after unit."""
        return tuple(member for unit in self.units for member in unit.members)

    @property
    def classes(self) -> tuple[int, ...]:
        """Classes with an image in this group, in order."""
        return tuple(sorted({label for label, _ in self.members}))


def class_units(classes: int, ipc: int) -> list[Unit]:
    """One unit per class with all its images (lpld)."""
    _require_listable(classes, ipc)
    return [
        Unit(key=(label, 0), members=tuple((label, number) for number in range(ipc)))
        for label in range(classes)
    ]


def mixed_units(classes: int, ipc: int, batch_size: int) -> list[Unit]:
    """Units of one image from each of `batch_size` neighbouring classes (sre2l)."""
    _require_listable(classes, ipc)
    return [
        Unit(
            key=(number, start),
            members=tuple((label, number) for label in range(start, min(start + batch_size, classes))),
        )
        for number in range(ipc)
        for start in range(0, classes, batch_size)
    ]


def _require_listable(classes: int, ipc: int) -> None:
    require_listable(classes * ipc, what="images", hint="recover fewer images per class (--ipc)")


def grouped(units: Sequence[Unit], group_size: int) -> list[Group]:
    """Cut the units into groups of `group_size`, in order."""
    return [
        Group(index=number, units=tuple(units[start : start + group_size]))
        for number, start in enumerate(range(0, len(units), group_size))
    ]
