"""Settings dataclasses: one line per field says its type, its default, its range and its help text.

    epochs: Annotated[int, Setting("Passes over the images.", ge=1)] = 300
    warmup_from: Annotated[float, Setting("Rate to begin with.", option=False, ge=0, le=1)] = 0.01

The command line makes an option of each of these fields (cli/options.py). `check_settings`, called by a
dataclass's ``__post_init__``, refuses values outside of the range or of the choices of a ``Literal``.
"""

from __future__ import annotations

import math
import types
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from lpld_labels.errors import InvalidArgumentError


@dataclass(frozen=True)
class Setting:
    """Help text of a field, and the range of its numbers. option: whether the command line has one for it."""

    help: str = ""
    option: bool = True
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def allows(self, number: float) -> bool:
        return (
            math.isfinite(number)
            and (self.ge is None or number >= self.ge)
            and (self.gt is None or number > self.gt)
            and (self.le is None or number <= self.le)
            and (self.lt is None or number < self.lt)
        )

    @property
    def range(self) -> str:
        bounds = ((">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt))
        return " and ".join(f"{sign} {bound:.15g}" for sign, bound in bounds if bound is not None)


@dataclass(frozen=True, kw_only=True)
class SettingField:
    """A field of a settings dataclass. kinds: the members of its type without None."""

    name: str
    kinds: tuple[Any, ...]
    optional: bool
    setting: Setting

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(word for kind in self.kinds if get_origin(kind) is Literal for word in get_args(kind))


@cache
def setting_fields(cls: type) -> dict[str, SettingField]:
    """Return the fields of a dataclass that have a `Setting`, in their order."""
    hints = get_type_hints(cls, include_extras=True)
    found = {}
    for entry in fields(cls):
        hint = hints[entry.name]
        if get_origin(hint) is not Annotated:
            continue
        kind, *notes = get_args(hint)
        setting = next((note for note in notes if isinstance(note, Setting)), None)
        if setting is not None:
            kinds = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
            without_none = tuple(kind for kind in kinds if kind is not types.NoneType)
            found[entry.name] = SettingField(
                name=entry.name,
                kinds=without_none,
                optional=len(without_none) < len(kinds),
                setting=setting,
            )
    return found


def check_settings(settings: object) -> None:
    """Refuse a value outside of its range or choices; the error names the field."""
    cls: type = type(settings)
    for name, entry in setting_fields(cls).items():
        value = getattr(settings, name)
        numbers = [part for part in (value if isinstance(value, tuple) else (value,)) if _is_number(part)]
        if not all(map(entry.setting.allows, numbers)):
            raise wrong_setting(name, f"a number {entry.setting.range}".rstrip(), value)
        takes_numbers = any(kind in (int, float) for kind in entry.kinds)
        if entry.choices and value not in entry.choices and not (numbers and takes_numbers):
            if value is None and entry.optional:
                continue
            expected = f"one of {', '.join(entry.choices)}" + (" or a number" if takes_numbers else "")
            raise wrong_setting(name, expected, value)


def wrong_setting(name: str, expected: str, got: object) -> InvalidArgumentError:
    """Return the error about a field."""
    return InvalidArgumentError(f"{name.replace('_', ' ')} is wrong", expected=expected, got=got)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
