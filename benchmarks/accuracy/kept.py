"""What took hours and is ours to give: teachers, class statistics and recovered images of a scale.

    python -m benchmarks.accuracy.kept WORK/tiny100 tiny100     keep what is finished in a work directory

It is kept in `benchmarks/data`, and a new work directory begins with it: on any machine a student takes its
own minutes and not the hours before them, and has the same teacher as all the others of a results file.
Images that are photos, or are cut from photos (real, rded), stay out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.accuracy.cells import SCALES, Scale
from benchmarks.common.harness import PROJECT, write_whole

DATA = PROJECT / "benchmarks" / "data"
RECOVERED = ("lpld-", "sre2l-", "cda-")
SECONDS = ".seconds"
"""Beside a folder of images: the seconds of processor time that they took."""
_FINISHED_IMAGES = "contact_sheet.png"


def keep(work: Path, scale: Scale, kept: Path) -> list[str]:
    """Copy what is finished in a work directory and not kept yet; return the names."""
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
    """Put what is kept of a scale into a work directory, unless it is there already.

    kept: the directory; None for that of the scale's data set. One of another scale is left alone.
    """
    kept = kept or DATA / scale.dataset
    about = kept / "scale.json"
    if not about.exists() or Scale.parse(json.loads(about.read_text())) != scale:
        return
    (work / "images").mkdir(parents=True, exist_ok=True)
    # A teacher is there when its JSON is, so weights come before it.
    for source in sorted(kept.glob("*.safetensors")) + sorted(kept.glob("*teacher*.json")):
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


def _finished(work: Path) -> Iterator[Path]:
    for about in sorted(work.glob("*teacher*.json")):
        yield from (about.with_suffix(".safetensors"), about)
    yield from sorted(work.glob("statistics-*.safetensors"))
    for folder in sorted((work / "images").glob("*")):
        if folder.name.startswith(RECOVERED) and (folder / _FINISHED_IMAGES).exists():
            yield folder
            if folder.with_suffix(SECONDS).exists():
                yield folder.with_suffix(SECONDS)


def _without_circumstances(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out who wrote a file and when: the same images are the same archive."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry


def _copy_whole(source: Path, target: Path) -> None:
    if not target.exists():
        unfinished = target.with_name(f".{target.name}")
        shutil.copyfile(source, unfinished)
        unfinished.rename(target)


def main() -> None:
    """Keep what a work directory has finished."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.accuracy.kept",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("work", type=Path, help="the scale's directory below --work")
    parser.add_argument("scale", choices=sorted(SCALES), help="whose it is")
    arguments = parser.parse_args()
    scale = SCALES[arguments.scale]
    written = keep(arguments.work, scale, DATA / scale.dataset)
    print("\n".join(written) or "nothing new is finished")


if __name__ == "__main__":
    main()
