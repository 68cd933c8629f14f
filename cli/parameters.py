"""Option types that more than one command uses: numbers, text, sizes, shares in per cent, parts of a job."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import click

from lpld_core.settings import Part
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.format.strict_json import is_text

UNITS = {"": 1, "B": 1} | {
    spelling: size
    for power, letter in enumerate("KMGT", 1)
    for spelling, size in (
        (letter, 1000**power),
        (f"{letter}B", 1000**power),
        (f"{letter}IB", 1024**power),
        (f"{letter}I", 1024**power),
    )
}
_PART_DIGITS = 9
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z-]*|%)\s*")


@dataclass(frozen=True, kw_only=True)
class Amount:
    """A number of bytes, or times something that only the command knows."""

    number: float
    of: Literal["bytes", "pool", "images"]

    def bytes(self, *, pool: int, images: int = 0) -> int:
        """Return whole bytes, given those of the pool and of the images."""
        return int(self.number * {"bytes": 1, "pool": pool, "images": images}[self.of])


class Number(click.types.FloatParamType):
    """A finite number: click takes nan and inf for numbers, and nan for one in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number.", param, ctx)
        return number


class NumberRange(Number, click.FloatRange):
    """A finite number in a range."""


class Text(click.types.StringParamType):
    """Text that can be written down; words of a command line may hold bytes that are none."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text."""
        text: str = super().convert(value, param, ctx)
        if not is_text(text):
            self.fail(f"{text!r} is not text.", param, ctx)
        return text


NUMBER = Number()
TEXT = Text()
SEED = click.IntRange(0, MAX_SEED)


class Budget(click.ParamType[Amount]):
    """Bytes (``30K``, ``300MB``, ``1 GiB``, ``4000``) or a share of the pool's (``10%``, ``2x``).

    images: whether a multiple of the images' bytes (``1x-images``) is allowed too.
    """

    name = "size"

    def __init__(self, *, images: bool = False) -> None:
        self._units = {unit: Amount(number=size, of="bytes") for unit, size in UNITS.items()}
        self._units |= {"%": Amount(number=0.01, of="pool"), "X": Amount(number=1, of="pool")}
        if images:
            self._units["X-IMAGES"] = Amount(number=1, of="images")
        forms = "300MB, 30K, 1 GiB, 4000 (bytes), 10% or 0.5x (of the pool)"
        self._forms = f"{forms} or 1x-images (of the images)" if images else forms

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Amount:
        """Return the amount, above 0."""
        if isinstance(value, Amount):
            return value
        match = _NUMBER.fullmatch(str(value))
        unit = self._units.get(match[2].upper()) if match else None
        if match is None or unit is None or not 0 < float(match[1]) * unit.number < math.inf:
            self.fail(f"{value!r} is not a size; write {self._forms}", param, ctx)
        return replace(unit, number=float(match[1]) * unit.number)


class PartParam(click.ParamType[Part]):
    """``2/3``, the second of three shares."""

    name = "I/N"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the form in help."""
        del param, ctx
        return self.name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Part:
        """Return the part."""
        if isinstance(value, Part):
            return value
        number, _, parts = str(value).partition("/")
        short = max(len(number), len(parts)) <= _PART_DIGITS
        if not (short and number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
            self.fail(f"expected I/N with 1 <= I <= N, got '{value}'", param, ctx)
        return Part(number=int(number), of=int(parts))


class Channels(click.ParamType["tuple[float, ...]"]):
    """Three numbers separated by commas, one per colour channel."""

    name = "R,G,B"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the form in help."""
        del param, ctx
        return self.name

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != 3 or not all(map(math.isfinite, numbers)):
            self.fail(f"expected three numbers separated by commas, all finite, got {value!r}", param, ctx)
        return numbers


class NumberOrWord(click.ParamType["float | str"]):
    """A finite number, or one of a few words."""

    name = "number"

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the words in help."""
        del param, ctx
        return "|".join((*self._words, "NUMBER"))

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """Return the number or the word."""
        if value in self._words:
            return str(value)
        try:
            number = float(str(value))
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"expected {', '.join(self._words)} or a number, got '{value}'", param, ctx)
        return number


PART = PartParam()
CHANNELS = Channels()
