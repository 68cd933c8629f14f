"""Format numbers and names for people."""

from __future__ import annotations

import math

LONGEST = 160  # Characters shown of a name or text.


def human_bytes(count: float) -> str:
    """Return a size in decimal units with three significant digits, e.g. ``1.71 kB``."""
    unit = "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if abs(count) < 999.5:
            break
        count, unit = count / 1000, larger
    digits = f"{count:.0f}" if unit == "B" else f"{count:#.3g}".rstrip(".")
    return f"{digits} {unit}"


def short_number(value: float) -> str:
    """Return a number with at most four significant digits; whole numbers in full."""
    if not math.isfinite(value):
        return "not a number"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.4g}"


def percent(share: float) -> str:
    """Return a share in per cent with one decimal, never rounded up to 100 or down to 0."""
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    if 0 < share < 0.0005:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"


def shortened(text: str, most: int = LONGEST) -> str:
    """Return a text, truncated to `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "\u2026"


def printable(text: str) -> str:
    """Return a text as one short line without control characters."""
    return shortened("".join(letter if letter.isprintable() else " " for letter in text))
