"""Which files a label batch passes on its way: through build, a read, prune, encode and a loader step.

    python docs/walk.py            # the walks as a table
    python docs/walk.py --calls    # with every function, and how often a batch calls it
    python docs/walk.py --json     # the same for programs

Each command runs twice, on a pool of few batches and on one of more. Functions that were called at least once
more for every further batch are those that work on a batch; the others are visited once per command, or by a
search that takes a step more or less (encode's fit). Files are listed in the order in which they were first
entered. The page beside this script explains the steps. --calls also lists the functions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from click.testing import CliRunner
from lpld_cli.main import group
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("lpld_labels", "lpld_core", "cli")
NETWORK = "small-resnet10:width=8,stem_stride=2"
CLASSES = 4
FEW, MORE = 700, 764
"""Batches of 16 rows. Encode's sample still grows with such pools (to 4,608 batches): its walk counts that a
batch is read once more to fit the codec, and what some batches go through to tune and to judge it."""


class Walk:
    """Counts calls by file and function while it is active, in the order in which they are first made."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()

    def __enter__(self) -> Walk:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        name = _product_file(frame.f_code.co_filename)
        if name is not None:
            self.calls[name, frame.f_code.co_name] += 1


@cache
def _product_file(name: str) -> str | None:
    path = Path(name).resolve()
    inside = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ROOMS
    return path.relative_to(ROOT).as_posix() if inside else None


def walk(run: Callable[[int], object]) -> dict[str, Any]:
    """Return the files that `run(number of batches)` passes: for each batch, and once."""
    run(FEW)  # imports and caches
    counts = []
    for batches in (FEW, MORE):
        with Walk() as seen:
            run(batches)
        counts.append(seen.calls)
    few, more = counts
    further = {call: (more[call] - few[call]) // (MORE - FEW) for call in more}
    per_batch = list(dict.fromkeys(file for (file, _), calls in further.items() if calls > 0))
    return {
        "per_batch": per_batch,
        "once": sorted({file for file, _ in more}.difference(per_batch)),
        "calls_per_batch": sum(calls for calls in further.values() if calls > 0),
        "calls": {f"{file}: {name}": calls for (file, name), calls in further.items() if calls > 0},
    }


def _command(*arguments: str) -> None:
    result = CliRunner().invoke(group, list(arguments), catch_exceptions=False)
    if result.exit_code != 0:
        raise SystemExit(f"lpld-labels {' '.join(arguments)}\n{result.output}")


def walks(work: Path) -> dict[str, dict[str, Any]]:
    """Return the walk of each command."""
    from safetensors.torch import save_file

    from lpld_core.networks.models import network_source, seeded

    weights = work / "teacher.safetensors"
    with seeded(0):
        save_file(network_source(NETWORK).build(CLASSES).module.state_dict(), weights)
    teacher = ("--teacher", NETWORK, "--teacher-weights", str(weights))
    images = work / "images"
    rng = np.random.default_rng(0)
    for label in range(CLASSES):
        (images / f"class{label}").mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(images / f"class{label}" / f"{number}.png")
    numbers = iter(range(1000))

    def out() -> str:
        return str(work / f"out{next(numbers)}")

    def build(batches: int) -> str:
        target = out()
        size = ("--size", "32", "--batch-size", "16", "--epochs", str(batches))
        _command("build", str(images), target, *teacher, *size)
        return target

    pools = {batches: build(batches) for batches in (FEW, MORE)}

    def read(batches: int) -> None:
        from lpld_labels import PoolReader

        with PoolReader(pools[batches]) as pool:
            for key in pool.keys:
                pool.read(key)

    def load(batches: int) -> None:
        from lpld_labels.loader import pool_loader

        for _ in pool_loader(pools[batches], images, batches_per_epoch=batches):
            pass

    return {
        "build": walk(build),
        "read": walk(read),
        "loader": walk(load),
        "prune": walk(lambda n: _command("prune", pools[n], out(), "--ratio", "1")),
        "encode klt": walk(
            lambda n: _command("encode", pools[n], out(), "--codec", "klt", "--fidelity", "0.9")
        ),
    }


def main() -> None:
    """Print the walks."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--calls", action="store_true", help="list functions, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        found = walks(Path(work))
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    for name, facts in found.items():
        print(f"{name}: {len(facts['per_batch'])} files and {facts['calls_per_batch']} calls for each batch,")
        print(f"  {len(facts['once'])} more files once")
        for number, path in enumerate(facts["per_batch"], 1):
            print(f"  {number:2d} {path}")
            for call, times in facts["calls"].items() if arguments.calls else ():
                if call.startswith(f"{path}: "):
                    print(f"     {times:4d} {call.removeprefix(f'{path}: ')}")


if __name__ == "__main__":
    main()
