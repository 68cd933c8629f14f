"""Names: paths of pool files by role, and paths of images."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from .errors import need, refuse

_NAME = r"(?!\.)[A-Za-z0-9_.\-]{1,128}"
_PATHS = {
    "batches": re.compile(r"batches-([0-9a-f]{8})\.parquet"),
    "images": re.compile(r"images\.parquet"),
    "views": re.compile(rf"views/({_NAME})\.parquet"),
    "labels": re.compile(rf"labels/({_NAME})\.parquet"),
    "codec": re.compile(rf"codec/({_NAME})"),
    "packed": re.compile(rf"packed/({_NAME})\.parquet"),
}
ROLES = tuple(_PATHS)
_RESERVED = {"con", "prn", "aux", "nul"} | {f"{p}{d}" for p in ("com", "lpt") for d in range(1, 10)}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CAPITALS = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}


def folded(path: str) -> str:
    """Fold ASCII capitals, and nothing else."""
    return path.translate(_CAPITALS)


def check_role_path(path: str, role: str, file: str, field: str) -> str:
    """Refuse a path its role does not demand; give its NAME (empty for `images`)."""
    match = _PATHS[role].fullmatch(path)
    if match is None:
        refuse(file, field, f"{path[:200]!r} is no path of role {role}")
    return match.group(1) if match.groups() else ""


def check_image_path(path: str, file: str, field: str) -> None:
    """Refuse an image path that is not a plain relative one."""
    need(len(path.encode("utf-8")) <= 4096, file, field, "path of more than 4,096 bytes")
    need(not _CONTROL.search(path), file, field, f"control character in {path!r}")
    need("\\" not in path and ":" not in path, file, field, f"backslash or colon in {path!r}")
    for part in path.split("/"):  # an absolute path has an empty first part
        need(part not in ("", ".", ".."), file, field, f"empty, '.' or '..' part in {path!r}")
        stem = folded(part.split(".", 1)[0])
        need(stem not in _RESERVED, file, field, f"name that Windows reserves in {path!r}")


def regular_file(root: Path, path: str) -> tuple[Path, int]:
    """Give real path and size of a pool's file: regular, and inside the pool's directory."""
    base = Path(os.path.realpath(root))
    real = Path(os.path.realpath(base / path))
    need(real != base and base in real.parents, path, "path", "a link out of the pool")
    try:
        status = real.stat()
    except OSError as error:
        refuse(path, "path", f"missing: {error.strerror}")
    need(stat.S_ISREG(status.st_mode), path, "path", "not a regular file")
    return real, status.st_size
