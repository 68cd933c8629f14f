"""The damage campaign: `python -m tests.trust.damage.campaign [CASES]` spoils golden pools in every way.

Each case changes one file of one pool: a flipped bit, a cut, two swapped blocks, a zeroed block, a block from
another file. In every third case the manifest is then made to agree with the file (sizes, digests, footers),
as somebody would who spoils it on purpose. Everything is read; it must end with the right values or a
LabelPoolError. What was signed again may also give other values, and a manifest may say other things about
them (another kind of labels, say), if `verify` says that the pool is not whole.
"""

import hashlib
import json
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from lpld_labels import PoolReader
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.packing import packed_images
from tests.trust.children import endings
from tests.trust.figures import Tally, finish, parser, workplace
from tests.trust.signing import sign

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"
MEGABYTES = 512
SECONDS = 10.0
KINDS = ("flip", "cut", "swap", "zero", "graft")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is done to a file: its kind, where (a share of its length), and a number for the details.

    signed: whether the manifest is made to agree.
    """

    pool: str
    file: str
    kind: str
    place: float
    detail: int
    signed: bool

    def applied(self, data: bytes, other: bytes) -> bytes:
        """Return the file with this damage; `other` is another file of the pool."""
        spoilt = bytearray(data)
        at = min(int(self.place * len(data)), len(data) - 1)
        size = 1 + self.detail % 64
        if self.kind == "flip":
            spoilt[at] ^= 1 << self.detail % 8
        elif self.kind == "cut":
            del spoilt[at:]
        elif self.kind == "zero":
            spoilt[at : at + size] = bytes(len(spoilt[at : at + size]))
        elif self.kind == "graft":
            start = self.detail % len(other)
            spoilt[at : at + size] = other[start : start + len(spoilt[at : at + size])]
        else:
            second_at = (at + 7 * size) % len(data)
            first, second = bytes(spoilt[at : at + size]), bytes(spoilt[second_at : second_at + size])
            length = min(len(first), len(second))
            spoilt[at : at + length], spoilt[second_at : second_at + length] = second[:length], first[:length]
        return bytes(spoilt)


def cases(count: int, seed: int) -> list[Damage]:
    """Return so many cases, spread evenly over pools, files and kinds of damage."""
    files = [
        (pool.name, path.relative_to(pool).as_posix())
        for pool in sorted(GOLDEN.iterdir())
        if pool.is_dir()
        for path in sorted(pool.rglob("*"))
        if path.is_file() and path.name != "README.md"
    ]
    order = np.random.default_rng(seed).permutation(len(files))
    made = []
    for number in range(count):
        rng = np.random.default_rng((seed, number))
        pool, file = files[int(order[number % len(files)])]
        # Every other flip: they are the most likely, and the ones that checks of structure miss.
        kind = KINDS[0] if rng.random() < 0.5 else KINDS[int(rng.integers(len(KINDS)))]
        made.append(
            Damage(
                pool=pool,
                file=file,
                kind=kind,
                place=float(rng.random()),
                detail=int(rng.integers(1 << 16)),
                signed=file != "pool.json" and rng.random() < 1 / 3,
            )
        )
    return made


class Bench:
    """Copies of the golden pools, and what is in them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._expected: dict[str, list[str]] = {}
        for pool in sorted(path for path in GOLDEN.iterdir() if path.is_dir()):
            shutil.copytree(pool, folder / pool.name)
            # Reading them warms the parent, too.
            self._expected[pool.name] = values_of(folder / pool.name)

    def __call__(self, damage: Damage) -> str | None:
        """Spoil a pool, use it, mend it."""
        pool = self._folder / damage.pool
        path, manifest = pool / damage.file, pool / "pool.json"
        before = {file: file.read_bytes() for file in (path, manifest)}
        others = sorted(file for file in pool.rglob("*") if file.is_file() and file != path)
        other = others[damage.detail % len(others)].read_bytes() or b"\0"
        changed = damage.applied(before[path], other)
        place = path
        try:
            if damage.signed:
                document = json.loads(before[manifest])
                place = path.rename(pool / sign(document, damage.file, changed))
                manifest.write_text(json.dumps(document))
            place.write_bytes(changed)
            return self._problem(pool, damage)
        finally:
            place.unlink()
            for file, data in before.items():
                file.write_bytes(data)

    def _problem(self, pool: Path, damage: Damage) -> str | None:
        found, expected = values_of(pool), self._expected[damage.pool]
        if found == expected:
            return None
        if found[1:] != expected[1:] and not damage.signed:
            return "other values"
        # Nothing is above the manifest, and who signs what is spoilt can forge the digests below it: what
        # labels mean, and what was signed again, is held against the content digest, by verify.
        return "verify calls other values whole" if check_pool(pool).whole else None


def values_of(path: Path) -> list[str]:
    """Return all that a reader gives: what labels mean, and digests of the images and of every batch."""
    with PoolReader(path) as pool:
        header, drawn = pool.header, pool.header.augmentation
        # What the content digest binds. Seeds, ranges of crops and names of teachers say where stored views
        # came from; SPEC.md lets no reader hold them against the views.
        looks = [(teacher.mean, teacher.std) for teacher in header.teachers]
        size = (drawn.output_height, drawn.output_width, drawn.resize)
        meaning = repr([header.classes, header.label_kind, size, looks])
        found = [meaning, hashlib.sha256(repr(pool.images).encode()).hexdigest()]
        packed = packed_images(pool)
        if packed is not None:
            found += [hashlib.sha256(packed.read(row)).hexdigest() for row in range(len(pool.images))]
        for number in range(len(pool)):
            batch = pool.read(pool.index.key(number))
            # Field by field; converting everything to text would take longer than reading it.
            state = hashlib.sha256(repr((batch.key, batch.mix, batch.cutout)).encode())
            parts = (batch.images, batch.crops, batch.flips, batch.patch_order, batch.labels)
            for part in parts:
                state.update(b"none" if part is None else np.ascontiguousarray(part).tobytes())
            found.append(state.hexdigest())
    return found


def main() -> int:
    """Run the campaign and say what came of it."""
    options = parser("Damaged pools: right values or a refusal.", cases=100_000).parse_args()
    chosen = cases(options.cases, options.seed)
    tally = Tally()
    with workplace() as folder:
        work = partial(Bench.__call__, Bench(folder))
        watched = endings(chosen, work, megabytes=MEGABYTES, seconds=SECONDS)
        for damage, ending in zip(chosen, watched, strict=True):
            tally.add(damage, ending)
    return finish("damage", options, tally.facts(), tally.findings)


if __name__ == "__main__":
    sys.exit(main())
