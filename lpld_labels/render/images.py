"""Where images come from: a folder, or the pool itself where it carries them.

`find_images` returns either. Both return an image's bytes by its row of the image table and check its digest.

Image folders have one directory per class. The order is that of torchvision's ImageFolder (class directories
sorted by name, files sorted within), so row numbers mean the same to both. Hidden files (names that begin
with a dot, and the ``__MACOSX`` that archives bring along) are neither classes nor images.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import NoReturn, Protocol, TypeVar

import numpy as np

from lpld_labels.errors import ImageMismatchError, ImageReadError, InvalidArgumentError
from lpld_labels.exec.job import Progress
from lpld_labels.format.digests import image_digest
from lpld_labels.format.images import ImageTable
from lpld_labels.io.random_access import read_regular
from lpld_labels.pool.packing import packed_images
from lpld_labels.pool.reader import PoolReader
from lpld_labels.render.decode import VARIABLE, decode_image, image_size, max_bytes

EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
ARCHIVE_REMAINS = "__MACOSX"
_AHEAD = 64
_THREADS = min(8, os.cpu_count() or 1)

T = TypeVar("T")
R = TypeVar("R")


def class_names(root: str | os.PathLike[str]) -> list[str]:
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


def list_images(root: str | os.PathLike[str]) -> tuple[list[str], list[int]]:
    """Return relative POSIX path and class of every image below `root`; no file is opened."""
    folder = Path(root)
    paths: list[str] = []
    classes: list[int] = []
    for number, name in enumerate(class_names(folder)):
        found = _image_paths(folder, name)
        if not found:
            raise ImageReadError(
                "class folder holds no images",
                where=folder / name,
                expected=f"files ending in {', '.join(EXTENSIONS)}",
                hint="add its images or remove the directory",
            )
        paths += found
        classes += [number] * len(found)
    return paths, classes


def scan_image_folder(
    root: str | os.PathLike[str], *, decode: bool = True, progress: Progress | None = None
) -> ImageTable:
    """Return the table of all images below `root`: paths, classes, sizes and content digests.

    decode: decode every image once, so a truncated file is named here and not hours into a run.
        Without, sizes come from the files' headers, which is several times faster.
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
    for fact in map_in_threads(examine, paths):
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
        return read_regular(path, most=max_bytes())
    except OSError as error:
        hint = f"allow more with the environment variable {VARIABLE}" if error.errno == errno.EFBIG else ""
        raise ImageReadError(f"cannot read image: {error.strerror}", where=path, hint=hint) from None


def file_status(path: Path) -> os.stat_result:
    """Return what the file system says of an image file."""
    try:
        return path.stat()
    except OSError as error:
        raise ImageReadError(f"cannot read image: {error.strerror}", where=path) from None


def passed_over(root: str | os.PathLike[str]) -> list[str]:
    """Return the relative POSIX paths of files in class folders without an image extension."""
    folder = Path(root)
    return [
        path
        for name in class_names(folder)
        for path in _file_paths(folder, name)
        if not path.lower().endswith(EXTENSIONS)
    ]


def try_each_kind(root: str | os.PathLike[str], paths: Iterable[str]) -> None:
    """Decode one image of each extension, so that unsupported kinds fail early."""
    for path in {Path(path).suffix.lower(): path for path in reversed(list(paths))}.values():
        decode_image(read_file(Path(root) / path), where=Path(root) / path)


def _file_paths(folder: Path, class_name: str) -> list[str]:
    """Return the relative POSIX paths of a class's files, in ImageFolder order."""
    paths = []
    for directory, names in sorted(_directories(folder / class_name)):
        below = Path(directory).relative_to(folder)
        paths += [(below / name).as_posix() for name in sorted(names) if not _hidden(name)]
    return paths


def _directories(top: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield every visible directory below `top` with its file names.

    Links are followed; a directory that is reached twice is refused, since links could form a cycle.
    """
    seen: set[tuple[int, int]] = set()
    for directory, below, names in os.walk(top, followlinks=True, onerror=_cannot_list):
        status = Path(directory).stat()
        if (status.st_dev, status.st_ino) in seen:
            raise ImageReadError(
                "links lead to this directory for the second time", where=directory, hint="remove a link"
            )
        seen.add((status.st_dev, status.st_ino))
        below[:] = [name for name in below if not _hidden(name)]
        yield directory, names


def _cannot_list(error: OSError) -> NoReturn:
    raise ImageReadError(f"cannot list image folder: {error.strerror}", where=error.filename) from None


def _hidden(name: str) -> bool:
    return name.startswith(".") or name == ARCHIVE_REMAINS


def _image_paths(folder: Path, class_name: str) -> list[str]:
    """Return the relative POSIX paths of a class's images, in ImageFolder order."""
    paths = [path for path in _file_paths(folder, class_name) if path.lower().endswith(EXTENSIONS)]
    for path in paths:
        # Python represents undecodable bytes of file names as lone surrogates.
        if not path.isascii() and any("\udc80" <= letter <= "\udcff" for letter in path):
            raise ImageReadError(
                f"file name is not UTF-8: {path!r}", where=folder / class_name, hint="rename this file"
            )
    return paths


def map_in_threads(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield work(item) in order, some items ahead; reading, hashing and decoding let go of the GIL."""
    waiting = iter(items)
    with ThreadPoolExecutor(_THREADS) as pool:
        running = deque(pool.submit(work, item) for item in islice(waiting, _AHEAD))
        try:
            while running:
                yield running.popleft().result()
                running.extend(pool.submit(work, item) for item in islice(waiting, 1))
        finally:
            for future in running:
                future.cancel()


Location = str | os.PathLike[str]


class ImageSource(Protocol):
    """Image files by row of an image table. Can be pickled and survives fork; threads may share one."""

    @property
    def table(self) -> ImageTable:
        """What the images are."""

    def read(self, row: int) -> bytes:
        """Return one image file, known to be the one that was labelled."""

    def place(self, row: int) -> str:
        """Return where an image is, for messages."""


class FolderImages:
    """Images below a folder."""

    def __init__(self, root: Location, table: ImageTable) -> None:
        self.root = Path(root)
        self.table = table

    def read(self, row: int) -> bytes:
        """Return one image file."""
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
                hint="restore the labelled images or label these anew",
            )
        return data

    def place(self, row: int) -> str:
        """Return the path of an image."""
        return str(self.root / self.table.paths[row])


def find_images(pool: PoolReader, folder: Location | None = None) -> ImageSource:
    """Return the images in the folder, or without one those packed in the pool."""
    if folder is not None:
        class_names(folder)
        return FolderImages(folder, pool.images)
    packed = packed_images(pool)
    if packed is None:
        raise no_images(pool.location)
    return packed


def no_images(pool: str) -> InvalidArgumentError:
    """Return the error for a pool without images."""
    return InvalidArgumentError(
        "the pool does not carry its images",
        where=pool,
        hint="give the labelled image folder (--images), or put them in (lpld-labels copy --images)",
    )


def check_images(
    source: ImageSource, *, indices: Iterable[int] | None = None, progress: Progress | None = None
) -> None:
    """Compare images with the table's digests; raise an error for the first that is missing or changed.

    indices: rows to check; all by default. Rows without a digest are only checked for existence.
    """
    rows = range(len(source.table)) if indices is None else [int(index) for index in indices]
    for done, _ in enumerate(map_in_threads(source.read, rows), 1):
        if progress is not None:
            progress(done, len(rows))
