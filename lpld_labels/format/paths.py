"""Which paths a pool may name: its own files by role, and image files below somebody's folder.

Both come out of files that may be from anywhere, so both are refused unless they are plainly harmless on
every system: a path must stay below its folder, mean one file, and be the same file everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lpld_labels.format.limits import MAX_PATH_BYTES

PATTERNS = {
    "batches": r"batches-[0-9a-f]{8}\.parquet",
    "images": r"images\.parquet",
    "views": r"views/{name}\.parquet",
    "labels": r"labels/{name}\.parquet",
    "codec": r"codec/{name}",
    "packed": r"packed/{name}\.parquet",
}
"""Where the files of each role lie; {name} is what a writer may choose."""
_NAME = r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}"
_COMPILED = {role: re.compile(pattern.replace("{name}", _NAME)) for role, pattern in PATTERNS.items()}

_FORBIDDEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE | re.MULTILINE), expected)
    for pattern, expected in (
        (r"[\x00-\x09\x0b-\x1f\x7f]", "a path without control characters"),
        (r"[\ud800-\udfff]", "a path that is valid UTF-8"),
        (r"^/|[\\:]", "a relative path with '/', without '\\' and ':'"),
        (r"(?:^|/)\.{0,2}(?:/|$)", "a path without empty, '.' or '..' parts"),
        (
            r"(?:^|/)(?:con|prn|aux|nul|com[1-9]|lpt[1-9])(?:\.[^/\n]*)?(?:/|$)",
            "a path without names that Windows reserves",
        ),
    )
)


def pool_path_problem(path: str, role: str) -> str | None:
    """Return what is wrong with the path of a pool's file, or None."""
    if _COMPILED[role].fullmatch(path) is None:
        return f"a path such as {PATTERNS[role].replace('{name}', 'NAME').replace(chr(92), '')}"
    return None


def image_paths_problem(paths: Sequence[str]) -> tuple[int, str] | None:
    """Return the first image path that may not be and what was expected of it, or None.

    Hundreds of thousands of paths are looked at as one text, which takes a fraction of the time.
    """
    if not _suspicious("\n".join(paths), len(paths)):
        twice = repeated_path(paths)
        return None if twice is None else (len(paths) - 1 - paths[::-1].index(twice), "every path once")
    for number, path in enumerate(paths):
        problem = _image_path_problem(path)
        if problem is not None:
            return number, problem
    return None


def _suspicious(text: str, count: int) -> bool:
    lines = text.count("\n") + 1 if count else 0
    long = len(text) > MAX_PATH_BYTES // 4 and max(map(len, text.split("\n"))) > MAX_PATH_BYTES // 4
    return lines != count or long or (count > 0 and any(rule.search(text) for rule, _ in _FORBIDDEN))


def _image_path_problem(path: str) -> str | None:
    if "\n" in path:
        return "a path without control characters"
    for rule, expected in _FORBIDDEN:
        if rule.search(path):
            return expected
    return None if len(path.encode()) <= MAX_PATH_BYTES else f"a path of at most {MAX_PATH_BYTES} bytes"


def repeated_path(paths: Iterable[str]) -> str | None:
    """Return a path that occurs twice after folding ASCII capitals, or None."""
    seen: set[bytes] = set()
    for path in paths:
        folded = path.encode("utf-8", "surrogatepass").lower()
        if folded in seen:
            return path
        seen.add(folded)
    return None
