"""click options: value types, options shared by commands, and options made from settings dataclasses.

@verb_command("squeeze", squeeze)
def command(data, out, as_json, **given):
    squeeze(data, out, **given)
"""

from __future__ import annotations

import inspect
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

import click

from lpld_core.settings import Part
from lpld_labels.errors import UsageError
from lpld_labels.format.strict_json import is_text
from lpld_labels.settings import SettingField, setting_fields
from lpld_labels.transforms.settings import Amount

from .progress import CommandProgress

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

_PART = re.compile(r"(\d{1,9})/(\d{1,9})")


class Number(click.types.FloatParamType):
    """A finite number. click's own number type accepts nan and inf, and its ranges accept nan."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class NumberRange(Number, click.FloatRange):
    """A finite number in a range."""


def _parsed(metavar: str, parse: Callable[[str], object]) -> click.ParamType[Any]:
    """Return a click type that parses words with `parse`; click shows the text of a ValueError."""
    kind = click.types.FuncParamType(parse)
    kind.name = metavar
    return kind


def _text(word: str) -> str:
    if not is_text(word):  # a command-line argument may be any bytes
        raise ValueError(f"{word!r} is not valid text")
    return word


def _part(word: str) -> Part:
    match = _PART.fullmatch(word)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"expected I/N with 1 <= I <= N, got '{word}'")
    return Part(number=int(match[1]), of=int(match[2]))


def _channels(word: str) -> tuple[float, ...]:
    problem = f"expected three numbers separated by commas, all finite, got {word!r}"
    try:
        numbers = tuple(float(part) for part in word.split(","))
    except ValueError:
        raise ValueError(problem) from None
    if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
        raise ValueError(problem)
    return numbers


def _size(word: str, *, images: bool) -> Amount:
    try:
        return Amount.parse(word, images=images)
    except UsageError as error:
        raise ValueError(str(error)) from None


NUMBER = Number()
TEXT = _parsed("TEXT", _text)
PART = _parsed("I/N", _part)
CHANNELS = _parsed("R,G,B", _channels)
POOL_BUDGET = _parsed("SIZE", lambda word: _size(word, images=False))
BUDGET = _parsed("SIZE", lambda word: _size(word, images=True))
# With these types, shells complete directories and files. click does not check that the paths exist: a pool
# may be a URI, and the library's errors are better.
FOLDER = click.Path(file_okay=False, path_type=Path)
FILE = click.Path(path_type=Path)
OUT = click.Path()
OUT.name = "out"
_POOL = click.Path(file_okay=False)
_ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "pool": {"type": _POOL},
    "pools": {"type": _POOL, "nargs": -1, "required": True, "metavar": "POOL..."},
    "out": {"type": click.Path()},
}
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace an existing output that lpld-labels wrote."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


SPELLED: Mapping[str, tuple[str, ...]] = {
    "batch_size": ("-b", "--batch-size"),
    "codecs": ("--codec",),
    "cutout_fraction": ("--cutout",),
    "jobs": ("-j", "--jobs"),
    "learning_rate": ("--lr",),
    "patch_grid": ("--patches",),
    "teachers": ("--teacher",),
    "weights": ("--teacher-weights",),
}
"""Option names of the fields whose option is not called --name-of-the-field."""


def call_options(
    cls: type, *, usual: Mapping[str, Any] | None = None, types: Mapping[str, Any] | None = None
) -> Decorator[Any]:
    """Add an option for every field of a dataclass that has a `Setting`.

    usual: defaults to show in help. These options default to None, so that --preset can set the value.
    types: click types of fields for which the annotation is not enough.
    """

    def add(command: F) -> F:
        defaults = {entry.name: entry.default for entry in fields(cls)}
        for entry in reversed(setting_fields(cls).values()):
            if entry.setting.option:
                shown = default = defaults[entry.name]
                if usual is not None and entry.name in usual:
                    shown, default = usual[entry.name], None
                command = _option(entry, (types or {}).get(entry.name), default, shown)(command)
        return command

    return add


def verb_command(
    name: str,
    function: Callable[..., Any],
    *,
    usual: Mapping[str, Any] | None = None,
    types: Mapping[str, Any] | None = None,
    cls: type[click.Command] = click.Command,
) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command with a verb's arguments, options and help text, followed by the command's examples.

    The command gets only the options that were given or have a default, and `progress`.
    """

    def make(command: Callable[..., Any]) -> click.Command:
        def run(**values: Any) -> None:
            command(progress=CommandProgress(), **given_only(values))

        call = vars(function)["call"]
        call_options(call, usual=usual, types=types)(json_option(run))
        for entry in reversed(fields(call)):
            if not entry.kw_only:
                more = {"required": entry.default is MISSING, **_ARGUMENTS.get(entry.name, {"type": FOLDER})}
                click.argument(entry.name, **more)(run)
        parts = (vars(function)["__wrapped__"].__doc__, command.__doc__)
        return click.command(name, cls, help="\n\n".join(map(inspect.cleandoc, parts)))(run)

    return make


def given_only(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that were given: drop values of None and ()."""
    return {name: value for name, value in values.items() if value not in (None, ())}


def _option(entry: SettingField, special: Any, default: Any, shown: Any) -> Decorator[Any]:
    """Return the option of a field. special: click type; None: derive it. shown: default shown in help."""
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
        more |= {"type": NUMBER, "nargs": len(get_args(kind)), "metavar": "LOW HIGH"}
    else:
        several = get_origin(kind) is tuple and get_args(kind)[0] is not float
        more |= {"type": _click_type(entry), "multiple": several}
    if kind is not bool and "[default:" not in text and shown not in (None, (), MISSING):
        values = shown if isinstance(shown, tuple) else (shown,)
        text += f"  [default: {' '.join(f'{v:g}' if isinstance(v, float) else str(v) for v in values)}]"
    return click.option(*words, entry.name, help=text.strip(), **more)


def _click_type(entry: SettingField) -> Any:
    """Return the click type of a field that takes one value."""
    setting, kind = entry.setting, entry.kinds[0]
    if entry.choices:
        return click.Choice(entry.choices)
    least = setting.ge if setting.gt is None else setting.gt
    most = setting.le if setting.lt is None else setting.lt
    if kind in (int, float) and least is None and most is None:
        return click.INT if kind is int else NUMBER
    if kind is int:
        return click.IntRange(None if least is None else int(least), None if most is None else int(most))
    if kind is float:
        return NumberRange(least, most, min_open=setting.gt is not None, max_open=setting.lt is not None)
    if os.PathLike[str] in entry.kinds:  # weights may be a name or a path; shells complete paths
        return click.Path() if entry.name == "weights" else FOLDER
    types = {str: TEXT, tuple[str, ...]: TEXT, tuple[float, ...]: CHANNELS, Part: PART}
    return types.get(kind, click.Path(path_type=Path))
