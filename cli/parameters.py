"""Types of options: finite numbers, text, sizes, parts of a job, values per colour channel."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import click

from lpld_core.settings import Part
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.format.strict_json import is_text

_PART = re.compile(r"(\d{1,9})/(\d{1,9})")
_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Z-]*|%)\s*", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A number of bytes, or a multiple of something that only the command knows."""

    number: float
    of: Literal["bytes", "pool", "images"]

    def bytes(self, *, pool: int, images: int = 0) -> int:
        """Return whole bytes, given those of the pool and of the images."""
        return int(self.number * {"bytes": 1, "pool": pool, "images": images}[self.of])


_UNITS = {
    "": Amount(number=1, of="bytes"),
    "B": Amount(number=1, of="bytes"),
    "%": Amount(number=0.01, of="pool"),
    "X": Amount(number=1, of="pool"),
    "X-IMAGES": Amount(number=1, of="images"),
} | {
    f"{letter}{end}": Amount(number=base**power, of="bytes")
    for power, letter in enumerate("KMGT", 1)
    for end, base in (("", 1000), ("B", 1000), ("I", 1024), ("IB", 1024))
}


class Number(click.types.FloatParamType):
    """A finite number; click accepts nan and inf, and nan in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class NumberRange(Number, click.FloatRange):
    """A finite number in a range."""


class Parsed(click.ParamType[Any]):
    """A value that a function makes of a word; its ValueError says what is wrong."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the form in help."""
        del param, ctx
        return self.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value."""
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _text(word: str) -> str:
    if not is_text(word):  # a word of the command line may be any bytes
        raise ValueError(f"{word!r} is not text")
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
    match = _SIZE.fullmatch(word)
    unit = _UNITS.get(match[2].upper()) if match else None
    known = unit is not None and (images or unit.of != "images")
    if match is None or unit is None or not known or not 0 < float(match[1]) * unit.number < math.inf:
        forms = "300MB, 30K, 1 GiB, 4000 (bytes), 10% or 0.5x (of the pool)"
        forms += " or 1x-images (of the images)" if images else ""
        raise ValueError(f"{word!r} is not a size; write {forms}")
    return replace(unit, number=float(match[1]) * unit.number)


NUMBER = Number()
TEXT = Parsed("TEXT", _text)
SEED = click.IntRange(0, MAX_SEED)
PART = Parsed("I/N", _part)
CHANNELS = Parsed("R,G,B", _channels)
POOL_BUDGET = Parsed("SIZE", partial(_size, images=False))
BUDGET = Parsed("SIZE", partial(_size, images=True))
