"""Settings dataclasses: one line per field declares its type, default, range and help text.

    epochs: Annotated[int, Setting("Passes over the images.", ge=1)] = 300
    warmup_from: Annotated[float, Setting("Rate to begin with.", option=False, ge=0, le=1)] = 0.01

The command line makes an option of each of these fields (cli/options.py). A dataclass calls `check_settings`
in ``__post_init__`` to refuse values outside of the range and values that a ``Literal`` does not list.
`verb` makes a Python function that takes these fields as keywords.
"""

from __future__ import annotations

import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from lpld_labels.errors import InvalidArgumentError, extras_required

P = ParamSpec("P")
Call = TypeVar("Call")
R = TypeVar("R")
T = TypeVar("T")
Defaults = Callable[[Mapping[str, Any]], Mapping[str, Any]]


@dataclass(frozen=True)
class Setting:
    """Help text and range of a field. option: whether the field is a command line option."""

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
    """A field of a settings dataclass. kinds: the members of the field's union type, without None."""

    name: str
    kinds: tuple[Any, ...]
    optional: bool
    setting: Setting

    @property
    def choices(self) -> tuple[str, ...]:
        return tuple(word for kind in self.kinds if get_origin(kind) is Literal for word in get_args(kind))


@functools.cache
def setting_fields(cls: type) -> dict[str, SettingField]:
    """Return the fields of a dataclass that have a `Setting`, in the order of declaration."""
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
                name=entry.name, kinds=without_none, optional=len(without_none) < len(kinds), setting=setting
            )
    return found


def check_settings(settings: object) -> None:
    """Raise if a field's value is outside of the field's range or choices. The error names the field."""
    cls: type = type(settings)
    for name, entry in setting_fields(cls).items():
        value = getattr(settings, name)
        parts = value if isinstance(value, tuple) else (value,)
        numbers = [part for part in parts if isinstance(part, int | float) and not isinstance(part, bool)]
        if not all(map(entry.setting.allows, numbers)):
            raise wrong_setting(name, f"a number {entry.setting.range}".rstrip(), value)
        takes_numbers = any(kind in (int, float) for kind in entry.kinds)
        if entry.choices and value not in entry.choices and not (numbers and takes_numbers):
            if value is None and entry.optional:
                continue
            expected = f"one of {', '.join(entry.choices)}" + (" or a number" if takes_numbers else "")
            raise wrong_setting(name, expected, value)


def wrong_setting(name: str, expected: str, got: object) -> InvalidArgumentError:
    """Return the error for a field with an invalid value."""
    return InvalidArgumentError(f"{name.replace('_', ' ')} is wrong", expected=expected, got=got)


def values_of(cls: type, call: object) -> dict[str, Any]:
    """Return {name: attribute of `call`} for those fields of the dataclass `cls` that `call` has, too."""
    names = (entry.name for entry in fields(cls))
    return {name: getattr(call, name) for name in names if hasattr(call, name)}


def part_of(cls: type[T], call: object, **other: Any) -> T:
    """Make a `cls` whose fields are copied from `call`. other: fields to set to other values."""
    return cls(**values_of(cls, call) | other)


def verb(
    call: Callable[P, Call], *, defaults: Defaults = lambda given: {}
) -> Callable[[Callable[[Call], R]], Callable[P, R]]:
    """Turn a function that takes the dataclass `call` into a function that takes the fields as arguments.

    The new signature and docstring list all fields. defaults: returns default values for given arguments.
    """
    cls = cast("type", call)
    hints, usual = get_type_hints(cls), defaults({})
    # Positional fields come first, as in the dataclass's own constructor.
    shown = sorted(fields(cls), key=lambda entry: bool(entry.kw_only))
    parameters = [_parameter(entry, hints[entry.name], usual) for entry in shown]

    def decorate(run: Callable[[Call], R]) -> Callable[P, R]:
        signature = inspect.Signature(parameters, return_annotation=run.__annotations__["return"])

        @functools.wraps(run)
        def function(*args: P.args, **given: P.kwargs) -> R:
            signature.bind(*args, **given)
            given.update({**defaults(given), **given})
            with extras_required():
                return run(call(*args, **given))

        text = inspect.cleandoc(run.__doc__ or "").replace("\b\n", "")  # click's mark of a block
        lines = [f"{name}: {entry.setting.help}" for name, entry in setting_fields(cls).items()]
        function.__doc__ = "\n".join([text, "", *lines])
        vars(function).update(call=cls, __signature__=signature)
        return function

    return decorate


def _parameter(entry: Field[Any], hint: Any, usual: Mapping[str, Any]) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY if entry.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = usual.get(entry.name, entry.default)
    default = inspect.Parameter.empty if default is MISSING else default
    return inspect.Parameter(entry.name, kind, default=default, annotation=hint)
