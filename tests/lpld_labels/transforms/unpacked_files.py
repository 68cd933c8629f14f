"""What is in a folder of unpacked images."""

from __future__ import annotations

from pathlib import Path

from lpld_labels.transforms.unpack import LIST_FILE, RECORD_FILE


def files_below(folder: Path) -> dict[str, bytes]:
    ours = (RECORD_FILE, LIST_FILE)
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in ours)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
