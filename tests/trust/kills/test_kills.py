"""A sample of what `make kills` does for every point: commands that are disturbed, and then run again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "every"),
    [
        ("write", 31),
        ("prune", 29),
        ("prune-over", 47),
        ("prune-by", 173),
        ("encode", 47),
        ("encode-klt", 331),
        ("import", 43),
        ("export", 41),
        ("copy", 53),
        ("build", 61),
        ("merge", 47),
    ],
)
def test_run_again_it_ends_as_if_nothing_had_happened(project: Path, command: str, every: int) -> None:
    run_kills(project, command, "--every", str(every), "--pairs", "5")


@pytest.mark.parametrize(("command", "every"), [("pack", 97), ("unpack", 97), ("prune-packed", 131)])
def test_pools_that_carry_their_images(project: Path, command: str, every: int) -> None:
    run_kills(project, command, "--every", str(every), "--pairs", "1")


@pytest.mark.parametrize(
    ("command", "every"), [("squeeze", 61), ("squeeze-train", 122), ("recover", 102), ("train", 151)]
)
def test_what_is_computed_goes_on_to_the_same_result(project: Path, command: str, every: int) -> None:
    """Two or three moments each: runs of these take longer."""
    run_kills(project, command, "--every", str(every), "--pairs", "0")


def run_kills(project: Path, *options: str) -> None:
    words = [sys.executable, "-m", "tests.trust.kills", *options]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 of" in done.stdout


def test_the_harness_notices(project: Path) -> None:
    """A command that is not made for it fails, and is told from one that is."""
    words = [sys.executable, "-m", "tests.trust.kills", "careless", "--pairs", "0"]
    done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "an error of no use" in done.stdout
    assert "left over" in done.stdout
