"""Damaged files: what each way to store labels gives back.

    python -m benchmarks.trust_peers --json benchmarks/results/trust_peers.json

Bits are flipped, files cut, blocks zeroed and swapped, files lost, one damage at a time; everything is read
in a child. A read is right, or refused with an error, or gives other labels without a word, or ends the
process, or does not end. Peers that are not installed are left out: the extra `peers`, best in an environment
of its own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import random
import select
import shutil
import signal
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.common.harness import parsed, write_json
from benchmarks.trust_peers.stores import STORES, Store, batches

KINDS = ("flip", "cut", "zero", "swap", "lost")
OUTCOMES = ("right", "refused", "wrong labels", "died", "hung")
SECONDS = 10.0


def damaged(data: bytes, kind: str, draw: random.Random) -> bytes | None:
    """Return a file with one damage; None where it is lost altogether."""
    spoilt = bytearray(data)
    place, size = draw.randrange(len(data)), 1 + draw.randrange(64)
    if kind == "flip":
        spoilt[place] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del spoilt[place:]
    elif kind == "zero":
        spoilt[place : place + size] = bytes(len(spoilt[place : place + size]))
    elif kind == "swap":
        other = draw.randrange(len(data))
        length = min(size, len(data) - max(place, other), abs(place - other))
        first, second = bytes(spoilt[place : place + length]), bytes(spoilt[other : other + length])
        spoilt[place : place + length], spoilt[other : other + length] = second, first
    else:
        return None
    return bytes(spoilt)


def outcome(store: Store, folder: Path, expected: str) -> str:
    """Return how reading everything in a child ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"refused"
        try:
            warnings.simplefilter("ignore")
            said = b"right" if store.read(folder) == expected else b"wrong labels"
        except BaseException:  # noqa: BLE001, S110 (a refusal, whatever it is called)
            pass
        finally:
            os.write(writer, said)
            os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], SECONDS)
    said = os.read(reader, 100) if ready else b"hung"
    os.close(reader)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return said.decode() or "died"


def measure(name: str, cases: int, seed: int) -> dict[str, Any]:
    """Return how often reads of one store end how, for each kind of damage."""
    store = STORES[name]
    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "whole"
        folder.mkdir()
        store.write(folder, batches())
        # Reading once loads what is needed, for all children.
        expected = store.read(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        for number in range(cases):
            draw = random.Random(f"{seed} {name} {number}")  # noqa: S311
            kind, path = KINDS[number % len(KINDS)], draw.choice(files)
            before = path.read_bytes()
            after = damaged(before, kind, draw)
            if after == before:
                continue
            path.unlink() if after is None else path.write_bytes(after)
            counts[kind][outcome(store, folder, expected)] += 1
            path.write_bytes(before)
        shutil.rmtree(folder)
    total: Counter[str] = sum(counts.values(), Counter())
    return {
        "store": name,
        "versions": {package: importlib.metadata.version(package) for package in store.packages},
        "files": len(files),
        "cases": sum(total.values()),
        "outcomes": {kind: total[kind] for kind in OUTCOMES},
        "by_damage": {kind: dict(sorted(found.items())) for kind, found in counts.items()},
    }


def installed(name: str) -> bool:
    """Whether what a store needs is here."""
    try:
        for package in STORES[name].packages:
            importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def show(rows: list[dict[str, Any]]) -> None:
    """Print the table."""
    table = Table("store", "cases", *OUTCOMES, title="Reading damaged label files")
    for row in rows:
        table.add_row(row["store"], str(row["cases"]), *(str(row["outcomes"][kind]) for kind in OUTCOMES))
    Console().print(table)


def main() -> None:
    """Parse, measure, show, write."""
    parser = argparse.ArgumentParser(description="What becomes of damaged label files.")
    parser.add_argument("--cases", type=int, default=2000, help="for each store (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="20 cases each")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parsed(parser)
    cases = 20 if options.quick else options.cases
    rows = [measure(name, cases, options.seed) for name in STORES if installed(name)]
    show(rows)
    if options.json is not None:
        write_json(
            options.json,
            benchmark="trust_peers",
            command=f"python -m benchmarks.trust_peers --cases {cases} --seed {options.seed}",
            results=rows,
        )


if __name__ == "__main__":
    main()
