"""A sample of what `make kills` and `make faults` do: commands that are disturbed, and then run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run_kills(project: Path, options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tests.trust.kills", *options.split()]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, env=alone)


@pytest.mark.parametrize(
    "options",
    [
        "write --every 31 --pairs 5",
        "prune --every 29 --pairs 5",
        "prune-over --every 47 --pairs 5",
        "prune-by --every 173 --pairs 5",
        "encode-klt --every 331 --pairs 5",
        "import --every 43 --pairs 5",
        "export --every 41 --pairs 5",
        "copy --every 53 --pairs 5",
        "build --every 61 --pairs 5",
        "merge --every 47 --pairs 5",
        "pack --every 97 --pairs 1",
        "unpack --every 97 --pairs 1",
        "prune-packed --every 131 --pairs 1",
        # Two or three moments each: runs of these take longer.
        "squeeze --every 61 --pairs 0",
        "squeeze-train --every 122 --pairs 0",
        "recover --every 102 --pairs 0",
        "train --every 151 --pairs 0",
        # A disk that fails, instead of kills.
        "write --faults --every 90 --pairs 0",
    ],
)
def test_run_again_it_ends_as_if_nothing_had_happened(project: Path, options: str) -> None:
    done = run_kills(project, options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of" in done.stdout


def test_the_harness_notices(project: Path) -> None:
    """A command that is careless about errors and temporary files fails."""
    done = run_kills(project, "careless --pairs 0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "an error of no use" in done.stdout
    assert "left over" in done.stdout
