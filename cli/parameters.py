"""Option types that more than one command uses: sizes in bytes, shares in per cent, parts of a job."""

from __future__ import annotations

import re

import click

from lpld_core.part import Part

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_NUMBER = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*|%)\s*")


class ByteSize(click.ParamType[int]):
    """A number of bytes: ``300MB``, ``1.5GiB``, ``4000``."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return whole bytes, at least one."""
        if isinstance(value, int):
            return value
        match = _NUMBER.fullmatch(str(value))
        unit = UNITS.get(match[2].upper()) if match else None
        if match is None or unit is None or float(match[1]) * unit < 1:
            self.fail(f"{value!r} is not a size; write 300MB, 1.5GiB or a number of bytes", param, ctx)
        return int(float(match[1]) * unit)


class Share(click.ParamType[float]):
    """A share from 0 up to but not including 1: ``10%`` or ``0.1``."""

    name = "share"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the share as a fraction."""
        if isinstance(value, float):
            return value
        match = _NUMBER.fullmatch(str(value))
        if match is None or match[2] not in ("", "%"):
            self.fail(f"{value!r} is not a share; write 10% or 0.1", param, ctx)
        share = float(match[1]) / (100 if match[2] else 1)
        if share >= 1:
            self.fail(f"{value!r} is not below 100%", param, ctx)
        return share


def parse_part(ctx: click.Context, param: click.Parameter, value: str | None) -> Part | None:
    """Parse ``2/3``, the second of three shares; a callback for --part."""
    del ctx, param
    if value is None:
        return None
    number, _, parts = value.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise click.BadParameter(f"expected I/N with 1 <= I <= N, got '{value}'")
    return Part(number=int(number), of=int(parts))
