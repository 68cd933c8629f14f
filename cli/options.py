"""click options made from settings dataclasses: type, default, range and help text come from the field.

@settings_options(SqueezeSettings)
def command(**given):
settings = take(SqueezeSettings, given)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click

from lpld_core.settings import Part
from lpld_labels.settings import SettingField, setting_fields

from .parameters import CHANNELS, PART, TEXT, Number, NumberRange

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SPELLED: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("-b", "--batch-size"),
    "codecs": ("--codec",),
    "cutout_fraction": ("--cutout",),
    "jobs": ("-j", "--jobs"),
    "learning_rate": ("--lr",),
    "network": ("--teacher",),
    "patch_grid": ("--patches",),
    "teachers": ("--teacher",),
    "weights": ("--teacher-weights",),
    "workers": ("-j", "--workers"),
}
"""Fields whose options are not simply --name-of-the-field."""
FILES = ("weights",)
"""Fields of text that may be a path: the shell completes it."""


def settings_options(
    cls: type, *, preset: Any = None, unset: bool = False, types: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Add an option for every field of a dataclass that has a `Setting`.

    preset: settings that a --preset may replace: options are None unless given, and help shows the preset's
    values. unset: options are None unless given. types: click types of fields whose own do not say enough.
    """

    def add(command: F) -> F:
        defaults = {entry.name: entry.default for entry in fields(cls)}
        for entry in reversed(setting_fields(cls).values()):
            if entry.setting.option:
                shown = default = defaults[entry.name]
                if preset is not None:
                    shown, default = getattr(preset, entry.name), None
                elif unset and default is not MISSING:
                    default = None
                command = _option(entry, (types or {}).get(entry.name), default, shown)(command)
        return command

    return add


def take(cls: type[T], given: dict[str, Any], *, base: T | None = None, **more: Any) -> T:
    """Move the values of a dataclass's fields out of what click gave, and return the dataclass.

    base: settings to change; without, fields that were not given have their defaults.
    """
    names = {entry.name for entry in fields(cls)} & given.keys()  # type: ignore[arg-type]
    values = {name: value for name in names if (value := given.pop(name)) not in (None, ())} | more
    return cls(**values) if base is None else replace(base, **values)  # type: ignore[type-var]


def _option(entry: SettingField, special: Any, default: Any, shown: Any) -> Callable[[F], F]:
    """Return the option of a field. special: its click type. shown: the default that help names."""
    words = SPELLED.get(entry.name, (f"--{entry.name.replace('_', '-')}",))
    kind, text = entry.kinds[0], entry.setting.help
    more: dict[str, Any] = {"default": None if default is MISSING else default}
    if default is MISSING and "[default:" not in text:
        more = {"required": True}
    if special is not None:
        more["type"] = special
    elif kind is bool:
        if default is False:
            more["is_flag"] = True
        else:
            words = (f"{words[0]}/--no-{words[0].removeprefix('--')}",)
    elif get_origin(kind) is tuple and ... not in get_args(kind):
        more |= {"type": Number(), "nargs": len(get_args(kind)), "metavar": "LOW HIGH"}
    else:
        more |= {"type": _click_type(entry), "multiple": kind == tuple[str, ...]}
    if kind is not bool and "[default:" not in text and shown not in (None, (), MISSING):
        values = shown if isinstance(shown, tuple) else (shown,)
        text += f"  [default: {' '.join(map(_plain, values))}]"
    return click.option(*words, entry.name, help=text.strip(), **more)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _click_type(entry: SettingField) -> Any:
    """Return the click type of a field that takes one value."""
    if entry.choices:
        return click.Choice(entry.choices)
    setting, kind = entry.setting, entry.kinds[0]
    if kind is int:
        least, most = setting.ge, setting.le
        return click.IntRange(None if least is None else int(least), None if most is None else int(most))
    if kind is float:
        least = setting.ge if setting.gt is None else setting.gt
        most = setting.le if setting.lt is None else setting.lt
        return NumberRange(least, most, min_open=setting.gt is not None, max_open=setting.lt is not None)
    if entry.name in FILES:
        return click.Path()
    types = {str: TEXT, tuple[str, ...]: TEXT, tuple[float, ...]: CHANNELS, Part: PART}
    return types[kind] if kind in types else click.Path(path_type=Path)
