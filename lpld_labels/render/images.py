"""Sources of images: a folder, or a pool that contains its images. `find_images` returns either.

Image folders have one directory per class and the order of torchvision's ImageFolder: class directories
sorted by name, then files sorted in each class. Hidden files (names that begin with a dot, and ``__MACOSX``
of archives) are neither classes nor images.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np

from lpld_labels.errors import ImageMismatchError, ImageReadError, InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.format.strict_json import is_text
from lpld_labels.io.random_access import read_regular
from lpld_labels.pool.packing import ImageSource, packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.decode import BYTES_PER_PIXEL, VARIABLE, decode_image, image_size, max_pixels

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
ARCHIVE_REMAINS = "__MACOSX"
AHEAD = 64
THREADS = min(8, os.cpu_count() or 1)

Location = str | os.PathLike[str]
T = TypeVar("T")
R = TypeVar("R")


def class_names(root: Location) -> list[str]:
    """Return the names of the class directories in class order."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir() and not _hidden(entry.name))
    except FileNotFoundError:
        raise ImageReadError("image folder does not exist", where=root) from None
    except OSError as error:
        _cannot_list(error)
    if not names:
        raise ImageReadError(
            "image folder has no class folders",
            where=root,
            hint="put the images of each class into a directory of its own",
        )
    return names


def list_images(root: Location) -> tuple[list[str], list[int]]:
    """Return the relative POSIX paths and the class indices of all images below `root`. Open no file."""
    folder = Path(root)
    paths: list[str] = []
    classes: list[int] = []
    for number, name in enumerate(class_names(folder)):
        found = [path for path in _file_paths(folder, name) if path.lower().endswith(EXTENSIONS)]
        for path in found:
            if not is_text(path):
                raise ImageReadError(
                    f"file name is not UTF-8: {path!r}", where=folder / name, hint="rename this file"
                )
        if not found:
            raise ImageReadError(
                "class folder contains no images",
                where=folder / name,
                expected=f"files ending in {', '.join(EXTENSIONS)}",
                hint="add its images or remove the directory",
            )
        paths += found
        classes += [number] * len(found)
    return paths, classes


def scan_image_folder(root: Location, *, decode: bool = True, progress: Progress | None = None) -> ImageTable:
    """Return the table of all images below `root`: paths, classes, sizes and content digests.

    decode: decode every image, so that a truncated file fails here and not hours into a run. Otherwise
        sizes come from the files' headers, which is several times faster.
    """
    folder = Path(root)
    paths, classes = list_images(folder)

    def examine(path: str) -> tuple[int, int, bytes]:
        data = read_file(folder / path)
        if decode:
            height, width, _ = decode_image(data, where=folder / path).shape
        else:
            width, height = image_size(data, where=folder / path)
        return width, height, image_digest(data)

    facts = []
    for fact in map_ahead(examine, paths, workers=THREADS, ahead=AHEAD):
        facts.append(fact)
        if progress is not None:
            progress(len(facts), len(paths))
    return ImageTable(
        paths=paths,
        classes=np.array(classes, np.int32),
        widths=np.array([width for width, _, _ in facts], np.int32),
        heights=np.array([height for _, height, _ in facts], np.int32),
        digests=[digest for _, _, digest in facts],
    )


def read_file(path: Path) -> bytes:
    """Return the bytes of an image file; refuse pipes and devices."""
    try:
        return read_regular(path, most=BYTES_PER_PIXEL * max_pixels())
    except OSError as error:
        hint = f"allow more with the environment variable {VARIABLE}" if error.errno == errno.EFBIG else ""
        raise ImageReadError(f"cannot read image: {error.strerror}", where=path, hint=hint) from None


def file_status(path: Path) -> os.stat_result:
    """Return the status of an image file."""
    try:
        return path.stat()
    except OSError as error:
        raise ImageReadError(f"cannot read image: {error.strerror}", where=path) from None


def passed_over(root: Location) -> list[str]:
    """Return the relative POSIX paths of files without an image extension in class folders."""
    paths = [path for name in class_names(root) for path in _file_paths(Path(root), name)]
    return [path for path in paths if not path.lower().endswith(EXTENSIONS)]


def try_each_kind(root: Location, paths: Iterable[str]) -> None:
    """Decode one image of each extension, so that unsupported formats fail early."""
    for path in {Path(path).suffix.lower(): path for path in reversed(list(paths))}.values():
        decode_image(read_file(Path(root) / path), where=Path(root) / path)


def _file_paths(folder: Path, class_name: str) -> list[str]:
    """Return a class's visible files in ImageFolder order. Follow symlinks; refuse repeated directories."""
    found: list[tuple[str, list[str]]] = []
    seen: set[tuple[int, int]] = set()
    for directory, below, names in os.walk(folder / class_name, followlinks=True, onerror=_cannot_list):
        status = Path(directory).stat()
        if (status.st_dev, status.st_ino) in seen:
            raise ImageReadError(
                "symlinks lead to this directory twice", where=directory, hint="remove one of the symlinks"
            )
        seen.add((status.st_dev, status.st_ino))
        below[:] = [name for name in below if not _hidden(name)]
        found.append((directory, names))
    paths = []
    for directory, names in sorted(found):
        parent = Path(directory).relative_to(folder).as_posix()
        paths += [f"{parent}/{name}" for name in sorted(names) if not _hidden(name)]
    return paths


def _cannot_list(error: OSError) -> NoReturn:
    raise ImageReadError(f"cannot list image folder: {error.strerror}", where=error.filename) from None


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == ARCHIVE_REMAINS


def map_ahead(
    work: Callable[[T], R], items: Iterable[T], *, workers: int = 1, ahead: int = 2
) -> Generator[R, None, None]:
    """Yield work(item) in order, computed by threads. close() waits for running work and cancels the rest."""
    with ThreadPoolExecutor(workers, thread_name_prefix="ahead") as pool:
        waiting: deque[Future[R]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) > ahead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class FolderImages:
    """Source of images below a folder."""

    def __init__(self, root: Location, table: ImageTable) -> None:
        self.root = Path(root)
        self.table = table

    def read(self, row: int) -> bytes:
        path = self.root / self.table.paths[row]
        if not path.is_file():
            raise ImageMismatchError(
                f"image {row} of the labelled images is missing",
                where=path,
                hint="give the image folder that the pool was built from",
            )
        data = read_file(path)
        wanted = self.table.digests[row]
        if wanted is not None and image_digest(data) != wanted:
            raise ImageMismatchError(
                f"image {row} has changed since it was labelled",
                where=path,
                expected=f"digest {wanted.hex()}",
                got=image_digest(data).hex(),
                hint="restore the labelled images, or label the changed images with a new build",
            )
        return data

    def place(self, row: int) -> str:
        return str(self.root / self.table.paths[row])


def find_images(pool: PoolReader, folder: Location | None = None) -> ImageSource:
    """Return the images in the folder, or those packed in the pool if no folder is given."""
    if folder is not None:
        class_names(folder)
        return FolderImages(folder, pool.images)
    packed = packed_images(pool)
    if packed is None:
        raise no_images(pool.location)
    return packed


def no_images(pool: str) -> InvalidArgumentError:
    """Return the error for a pool that does not contain its images."""
    return InvalidArgumentError(
        "the pool does not contain its images",
        where=pool,
        hint="give the labelled image folder (--images), or add the images (lpld-labels copy --images)",
    )


def check_images(source: ImageSource, *, progress: Progress | None = None) -> None:
    """Refuse missing or changed images. Images without a digest only need to exist."""
    rows = range(len(source.table))
    for done, _ in enumerate(map_ahead(source.read, rows, workers=THREADS, ahead=AHEAD), 1):
        if progress is not None:
            progress(done, len(rows))
