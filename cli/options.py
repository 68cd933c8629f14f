"""click options made from settings dataclasses: type, default, range and help text come from the field.

@settings_options(SqueezeSettings)
def command(**given):
settings = take(SqueezeSettings, given)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click

from lpld_core.settings import Part
from lpld_labels.settings import SettingField, setting_fields

from .parameters import CHANNELS, PART, TEXT, Number, NumberOrWord, NumberRange

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SPELLED: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("-b", "--batch-size"),
    "codecs": ("--codec",),
    "cutout_fraction": ("--cutout",),
    "image_format": ("--format",),
    "jobs": ("-j", "--jobs"),
    "label_format": ("--format",),
    "learning_rate": ("--lr",),
    "network": ("--teacher",),
    "patch_grid": ("--patches",),
    "scale_by_t2": ("--t2",),
    "teachers": ("--teacher",),
    "weights": ("--teacher-weights",),
    "TrainSettings.workers": ("-j", "--workers"),
}
"""Fields whose options are not simply --name-of-the-field."""


def settings_options(
    cls: type, *, preset: Any = None, leave_out: Iterable[str] = (), types: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Add an option for every field of a dataclass that has a `Setting`.

    preset: settings that a --preset may replace. Options then are None unless given, and their help shows the
    values of these settings. types: click types of fields, where the field's own type does not say enough.
    """

    def add(command: F) -> F:
        for name, entry in reversed(setting_fields(cls).items()):
            if entry.setting.option and name not in leave_out:
                command = _option(cls, entry, preset, (types or {}).get(name))(command)
        return command

    return add


def take(cls: type[T], given: dict[str, Any], *, base: T | None = None, **more: Any) -> T:
    """Move the values of a dataclass's fields out of what click gave, and return the dataclass.

    base: settings to change; without, fields that were not given have their defaults.
    """
    names = {entry.name for entry in fields(cls)} & given.keys()  # type: ignore[arg-type]
    values = {name: value for name in names if (value := given.pop(name)) not in (None, ())} | more
    return cls(**values) if base is None else replace(base, **values)  # type: ignore[type-var]


def _option(cls: type, entry: SettingField, preset: Any, special: Any) -> Callable[[F], F]:
    spelled = SPELLED.get(f"{cls.__name__}.{entry.name}") or SPELLED.get(
        entry.name, (f"--{entry.name.replace('_', '-')}",)
    )
    default = _default(cls, entry.name)
    help_text = entry.setting.help
    more: dict[str, Any] = {}
    kind = entry.kinds[0]
    if special is not None:
        more["type"] = special
    elif kind is bool:
        if preset is not None or default is True:
            spelled = (f"{spelled[0]}/--no-{spelled[0].removeprefix('--')}",)
        else:
            more["is_flag"] = True
    elif get_origin(kind) is tuple and ... not in get_args(kind):
        more |= {"type": Number(), "nargs": len(get_args(kind)), "metavar": "LOW HIGH"}
    elif kind == tuple[str, ...]:
        more |= {"type": TEXT, "multiple": True}
    else:
        more["type"] = _click_type(entry)
    if default is MISSING and preset is None:
        more["required"] = True
    elif preset is None:
        more["default"] = default
        more["show_default"] = kind is not bool and default not in (None, ()) and "[default:" not in help_text
    else:
        more["default"] = None
        value = getattr(preset, entry.name)
        if value is not None and kind is not bool and "[default:" not in help_text:
            shown = " ".join(map(_plain, value)) if isinstance(value, tuple) else _plain(value)
            help_text += f"  [default: {shown}]"
    return click.option(*spelled, entry.name, help=help_text, **more)


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default(cls: Any, name: str) -> Any:
    return next(entry.default for entry in fields(cls) if entry.name == name)


def _click_type(entry: SettingField) -> Any:
    """Return the click type of a field that takes one value."""
    if entry.choices:
        takes_numbers = any(kind in (int, float) for kind in entry.kinds)
        return NumberOrWord(entry.choices) if takes_numbers else click.Choice(entry.choices)
    setting, kind = entry.setting, entry.kinds[0]
    if kind is int:
        least, most = setting.ge, setting.le
        return click.IntRange(None if least is None else int(least), None if most is None else int(most))
    if kind is float:
        least = setting.ge if setting.gt is None else setting.gt
        most = setting.le if setting.lt is None else setting.lt
        if least is None and most is None:
            return Number()
        return NumberRange(least, most, min_open=setting.gt is not None, max_open=setting.lt is not None)
    return {str: TEXT, Path: click.Path(path_type=Path), Part: PART, tuple[float, ...]: CHANNELS}[kind]
