"""Images that students are trained and judged on: a directory with train/ and val/, one folder per class.

Any such directory will do (`--data`). Results in the repository are of the first 20 or 100 classes of
Tiny-ImageNet, which are not ours to pass on; Stanford publishes them as tiny-imagenet-200.zip. This brings
the first classes by name into shape:

    python -m benchmarks.common.image_data tiny-imagenet-200.zip tiny20 --classes 20
"""

from __future__ import annotations

import argparse
import tarfile
import zipfile
from pathlib import Path, PurePosixPath

from benchmarks.common.harness import SHARED_DATA
from lpld_labels.errors import InvalidArgumentError


def unpack_data(dataset: str, folder: Path) -> None:
    """Unpack train/ and val/ of a data set that is at hand; say how to get one where it is not."""
    archive = SHARED_DATA / f"{dataset}.tar.gz"
    if not archive.exists():
        raise InvalidArgumentError(
            "the images of this benchmark are not here",
            where=archive,
            hint="give --data DIRECTORY with train/CLASS/*.jpg and val/CLASS/*.jpg of your own, or get "
            "tiny-imagenet-200.zip and see `python -m benchmarks.common.image_data --help`",
        )
    with tarfile.open(archive) as opened:
        opened.extractall(folder, filter="data")


def arrange_tiny_imagenet(archive: Path, folder: Path, classes: int) -> int:
    """Write train/CLASS and val/CLASS of the first classes by name; return how many images were written."""
    written = 0
    with zipfile.ZipFile(archive) as source:
        names = [PurePosixPath(name) for name in source.namelist()]
        root = next(name.parent for name in names if name.name == "wnids.txt")
        wanted = sorted(source.read(str(root / "wnids.txt")).decode().split())[:classes]
        lines = source.read(str(root / "val" / "val_annotations.txt")).decode().splitlines()
        validation = {line.split("\t")[0]: line.split("\t")[1] for line in lines if line}
        for name in names:
            if name.suffix != ".JPEG":
                continue
            part = name.relative_to(root).parts[0]
            label = name.parts[-3] if part == "train" else validation.get(name.name, "")
            if part in ("train", "val") and label in wanted:
                target = folder / part / label / name.name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(source.read(str(name)))
                written += 1
    return written


def main() -> None:
    """Arrange Tiny-ImageNet's archive."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archive", type=Path, help="tiny-imagenet-200.zip")
    parser.add_argument("out", type=Path, help="directory to write")
    parser.add_argument("--classes", type=int, default=20, help="how many [default: 20]")
    arguments = parser.parse_args()
    written = arrange_tiny_imagenet(arguments.archive, arguments.out, arguments.classes)
    print(f"{written} images in {arguments.out}")


if __name__ == "__main__":
    main()
