"""Teachers, class statistics and recovered images, which take hours, kept in `benchmarks/data`.

    python -m benchmarks.accuracy.kept WORK/tiny100      copy the finished ones from a work directory

A new work directory starts with them, so a student takes minutes on any machine, and all students of a
results file have the same teacher. Images that are photos, or are cut from photos (real, rded), are not kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.accuracy.cells import TINY100, Scale
from benchmarks.common.harness import PROJECT, write_whole

DATA = PROJECT / "benchmarks" / "data"
RECOVERED = ("lpld-", "sre2l-", "cda-")
SECONDS = ".seconds"
"""Suffix of a file beside a folder of images: the seconds of processor time of their recovery."""
_FINISHED_IMAGES = "contact_sheet.png"


def keep(work: Path, scale: Scale, kept: Path) -> list[str]:
    """Copy the finished parts of a work directory that are not kept yet; return their names."""
    kept.mkdir(parents=True, exist_ok=True)
    written = []
    for source in _finished(work):
        target = kept / (f"{source.name}.tar" if source.is_dir() else source.name)
        if target.exists():
            continue
        if source.is_dir():
            unfinished = target.with_name(f".{target.name}")
            with tarfile.open(unfinished, "w") as archive:
                archive.add(source, arcname=source.name, filter=_without_circumstances)
            unfinished.rename(target)
        else:
            _copy_whole(source, target)
        written.append(target.name)
    write_whole(kept / "scale.json", scale.as_json())
    return written


def take(work: Path, scale: Scale, kept: Path | None = None) -> None:
    """Copy the kept parts of a scale into a work directory that does not have them.

    kept: the directory; None for that of the scale's data set. Parts of another scale are ignored.
    """
    kept = kept or DATA / scale.dataset
    about = kept / "scale.json"
    if not about.exists() or Scale.parse(json.loads(about.read_text())) != scale:
        return
    (work / "images").mkdir(parents=True, exist_ok=True)
    # The JSON marks a teacher as complete, so the weights are copied first.
    for source in sorted(kept.glob("*.safetensors")) + sorted(kept.glob("teacher-*.json")):
        _copy_whole(source, work / source.name)
    for source in sorted(kept.glob(f"*{SECONDS}")):
        _copy_whole(source, work / "images" / source.name)
    for source in sorted(kept.glob("*.tar")):
        folder = work / "images" / source.stem
        if not folder.exists():
            unfinished = folder.with_name(f".{folder.name}")
            shutil.rmtree(unfinished, ignore_errors=True)
            with tarfile.open(source) as archive:
                archive.extractall(unfinished, filter="data")
            (unfinished / folder.name).rename(folder)
            unfinished.rmdir()


def teacher_facts(root: Path, kind: str) -> dict[str, Any] | None:
    """Return settings and accuracy of a teacher; None if the directory has no such teacher."""
    path = root / f"teacher-{kind}.json"
    facts: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return facts


def _finished(work: Path) -> Iterator[Path]:
    for about in sorted(work.glob("teacher-*.json")):
        yield from (about.with_suffix(".safetensors"), about)
    yield from sorted(work.glob("statistics-*.safetensors"))
    for folder in sorted((work / "images").glob("*")):
        if folder.name.startswith(RECOVERED) and (folder / _FINISHED_IMAGES).exists():
            yield folder
            if folder.with_suffix(SECONDS).exists():
                yield folder.with_suffix(SECONDS)


def _without_circumstances(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop owner and time, so that the same images make the same archive."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _copy_whole(source: Path, target: Path) -> None:
    if not target.exists():
        unfinished = target.with_name(f".{target.name}")
        shutil.copyfile(source, unfinished)
        unfinished.rename(target)


def main() -> None:
    """Parse, copy, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.kept",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("work", type=Path, help="the scale's directory below --work")
    written = keep(parser.parse_args().work, TINY100, DATA / TINY100.dataset)
    print("\n".join(written) or "nothing new is finished")


if __name__ == "__main__":
    main()
