"""Print what a pool holds and verify it: `python -m tests.independent_reader POOL`."""

from __future__ import annotations

import sys

from . import Refused, open_pool, verify


def say(line: str, error: bool = False) -> None:
    """Write a line."""
    (sys.stderr if error else sys.stdout).write(line + "\n")


def main(arguments: list[str]) -> int:
    """Run on one pool."""
    if len(arguments) != 1:
        say("usage: python -m tests.independent_reader POOL", error=True)
        return 2
    try:
        pool = open_pool(arguments[0])
        for entry in pool.index:
            say(f"epoch {entry.epoch} batch {entry.batch}: {entry.rows} rows, digest {entry.digest.hex()}")
        say(f"{len(pool.keys)} batches, {pool.manifest.counts.rows} rows")
        say(f"content digest {pool.manifest.content_digest}")
        verify(arguments[0])
    except Refused as error:
        say(f"refused: {error}", error=True)
        return 1
    say("verified")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
