"""Hostile files: `python -m tests.trust.hostile {pools,label-files,images} [CASES]`.

Each is used in a child that may take 1 GB and 10 s, open files below its own folder only, and start nothing.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.trust.children import Ending, endings, watched
from tests.trust.figures import Tally, finish, parser, workplace

CASES = {"pools": 2000, "label-files": 500, "images": 20_000}
MEGABYTES, SECONDS = 1000, 10.0


# What each needs is imported by it alone: a fork takes the longer the more its parent has loaded.


def pools(numbers: range, seed: int, folder: Path) -> Iterator[Ending]:
    """Use crafted pools."""
    from tests.trust.damage.campaign import GOLDEN
    from tests.trust.hostile.pools import crafted_pool, use_pool

    # The parent is to be warm.
    use_pool(min(path for path in GOLDEN.iterdir() if path.is_dir()))
    return _one_by_one(numbers, folder, partial(crafted_pool, seed=seed), use_pool)


def label_files(numbers: range, seed: int, folder: Path) -> Iterator[Ending]:
    """Read crafted label files."""
    from tests.trust.hostile.label_files import crafted_file, use_file

    return _one_by_one(numbers, folder, partial(crafted_file, seed=seed), use_file)


def _one_by_one(
    numbers: range, folder: Path, craft: Callable[[Path, int], Path], use: Callable[[Path], object]
) -> Iterator[Ending]:
    for number in numbers:
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = craft(Path(place), number)
            root = path if path.is_dir() else path.parent
            yield watched(partial(use, path), megabytes=MEGABYTES, seconds=SECONDS, folders=[root])


def images(numbers: range, seed: int, folder: Path) -> Iterator[Ending]:
    """Decode fuzzed images."""
    from tests.trust.hostile.images import crafted_image, use_image

    def work(number: int) -> None:
        use_image(crafted_image(number, seed=seed))

    return endings(numbers, work, megabytes=MEGABYTES, seconds=SECONDS, folders=[folder])


WAYS = {"pools": pools, "label-files": label_files, "images": images}


def main() -> int:
    """Run one of the campaigns and say what came of it."""
    choice = argparse.ArgumentParser(add_help=False)
    choice.add_argument("what", choices=WAYS)
    which, others = choice.parse_known_args()
    options = parser(f"Hostile {which.what}.", cases=CASES[which.what]).parse_args(others)
    # Decoders may say that a file is odd; they may not do more.
    warnings.simplefilter("ignore")
    tally = Tally()
    numbers = range(options.cases)
    with workplace() as folder:
        for number, ending in zip(numbers, WAYS[which.what](numbers, options.seed, folder), strict=True):
            tally.add(number, ending)
    return finish(f"hostile {which.what}", options, tally.facts(), tally.findings)


if __name__ == "__main__":
    sys.exit(main())
