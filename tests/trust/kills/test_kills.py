"""A sample of what `make kills` and `make faults` do: commands that are disturbed, and then run again."""

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
        "write prune export copy --every 53 --pairs 2",
        "prune-over import merge encode-klt --every 101 --pairs 1",
        "pack unpack build --every 97 --pairs 0",
        "train --every 151 --pairs 0",
        # A disk that fails, instead of kills.
        "write --faults --every 90 --pairs 0",
        pytest.param("prune-by encode prune-packed --every 97 --pairs 2", marks=pytest.mark.thorough),
        pytest.param("squeeze squeeze-train recover --every 102 --pairs 0", marks=pytest.mark.thorough),
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
