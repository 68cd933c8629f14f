"""What is in a folder of unpacked images."""

from __future__ import annotations

from pathlib import Path

from lpld_labels.rewriting.unpack import RECORD_FILE


def files_below(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != RECORD_FILE)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
