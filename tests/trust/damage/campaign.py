"""The damage campaign: `python -m tests.damage.campaign [CASES]` spoils golden pools in every way.

Each case changes one file of one pool (a flipped bit, a cut, two swapped blocks, a zeroed block) and reads
everything in a child of its own, forked from a warm parent. The child must end with the right values or a
LabelPoolError; anything else (an abort, a traceback, a wrong value, 512 MB) is a failure.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lpld_labels import LabelPoolError, PoolReader
from tests.golden.expected import as_json

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
MEMORY = 512 * 1024 * 1024
REFUSED, RIGHT, WRONG, CRASHED, TOO_LARGE = 10, 11, 12, 13, 14
KINDS = ("flip", "cut", "swap", "zero")


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is done to a file: its kind, where (a share of its length), and a number for the details."""

    pool: str
    file: str
    kind: str
    place: float
    detail: int

    def applied(self, data: bytes) -> bytes:
        """Return the file with this damage."""
        spoilt = bytearray(data)
        at = min(int(self.place * len(data)), len(data) - 1)
        size = 1 + self.detail % 64
        if self.kind == "flip":
            spoilt[at] ^= 1 << self.detail % 8
        elif self.kind == "cut":
            del spoilt[at:]
        elif self.kind == "zero":
            spoilt[at : at + size] = bytes(len(spoilt[at : at + size]))
        else:
            other = (at + 7 * size) % len(data)
            first, second = bytes(spoilt[at : at + size]), bytes(spoilt[other : other + size])
            length = min(len(first), len(second))
            spoilt[at : at + length], spoilt[other : other + length] = second[:length], first[:length]
        return bytes(spoilt)


def cases(count: int, seed: int = 0) -> list[Damage]:
    """Return as many cases, spread evenly over pools, files and kinds of damage."""
    rng = np.random.default_rng(seed)
    files = [
        (pool.name, path.relative_to(pool).as_posix())
        for pool in sorted(GOLDEN.iterdir())
        if pool.is_dir()
        for path in sorted(pool.rglob("*"))
        if path.is_file() and path.name != "README.md"
    ]
    order = rng.permutation(len(files))
    made = []
    for number in range(count):
        pool, file = files[int(order[number % len(files)])]
        # Every other flip: they are the most likely, and the ones that checks of structure miss.
        kind = KINDS[0] if number % 2 else KINDS[int(rng.integers(len(KINDS)))]
        made.append(
            Damage(
                pool=pool, file=file, kind=kind, place=float(rng.random()), detail=int(rng.integers(1 << 16))
            )
        )
    return made


def run(damages: list[Damage]) -> Counter[str]:
    """Return how many cases ended how; failures carry the case in their name."""
    outcomes: Counter[str] = Counter()
    expected: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for damage in damages:
            if damage.pool not in expected:
                document = json.loads((GOLDEN / f"{damage.pool}.json").read_text())
                expected[damage.pool] = [json.dumps(batch) for batch in document["batches"]]
                shutil.copytree(GOLDEN / damage.pool, Path(folder) / damage.pool)
                _outcome(Path(folder) / damage.pool, expected[damage.pool])  # the parent is warm
            path = Path(folder) / damage.pool / damage.file
            whole = path.read_bytes()
            spoilt = damage.applied(whole)
            path.write_bytes(spoilt)
            code = _in_child(Path(folder) / damage.pool, expected[damage.pool])
            path.write_bytes(whole)
            names = {REFUSED: "refused", RIGHT: "right"}
            outcomes[names.get(code, f"FAILED with {code}: {damage}")] += 1
    return outcomes


def _in_child(pool: Path, expected: list[str]) -> int:
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            code = _outcome(pool, expected)
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MEMORY:
                code = TOO_LARGE
        except BaseException:  # noqa: BLE001 (a traceback is what is looked for)
            code = CRASHED
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _outcome(path: Path, expected: list[str]) -> int:
    """Read all of a pool; return how it ended. Batches that can be read before the damage must be right."""
    try:
        with PoolReader(path) as pool:
            if len(pool) != len(expected):
                return WRONG
            exact = pool.codec.name != "klt"
            for number, text in enumerate(expected):
                found = as_json(pool.read(pool.index.key(number)))
                if not _same(json.loads(json.dumps(found)), json.loads(text), exact=exact):
                    return WRONG
    except LabelPoolError:
        return REFUSED
    return RIGHT


def _same(found: dict[str, Any], expected: dict[str, Any], *, exact: bool) -> bool:
    if exact:
        return found == expected
    # The last bits of a matrix product are the processor's.
    first, second = (np.frombuffer(bytes.fromhex(d.pop("labels")), d["dtype"]) for d in (found, expected))
    return found == expected and bool(np.allclose(first, second, atol=1e-5))


def main() -> int:
    """Run the campaign and say what came of it."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    outcomes = run(cases(count))
    failed = {name: number for name, number in outcomes.items() if name.startswith("FAILED")}
    sys.stdout.write(f"{count} cases: {outcomes['refused']} refused, {outcomes['right']} right\n")
    for name in failed:
        sys.stdout.write(f"{name}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
