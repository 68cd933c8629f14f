"""A small part of each campaign; `make trust` runs all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trust.children import endings, watched


def run(project: Path, *words: str) -> dict[str, Any]:
    """Run a campaign in a process of its own, from which its children are forked."""
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=alone)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert said["findings"] == 0
    return said


def test_damaged_pools(project: Path) -> None:
    said = run(project, "tests.trust.damage.campaign", "400")
    # What does no harm hit bytes that nobody reads: footers and keys of labels files.
    assert said["kinds"]["refused"] > 280
    assert said["kinds"]["well"] > 20


@pytest.mark.parametrize(
    ("what", "cases", "refused"), [("pools", 40, 25), ("label-files", 30, 15), ("images", 600, 300)]
)
def test_hostile_files(project: Path, what: str, cases: int, refused: int) -> None:
    said = run(project, "tests.trust.hostile", what, str(cases))
    assert said["cases"] == cases
    assert said["kinds"]["refused"] >= refused


def test_races(project: Path) -> None:
    # Two and three writers, a reader beside a writer, a pruning of a pool that grows.
    assert run(project, "tests.trust.races", "4")["kinds"]["well"] > 10


def test_soak(project: Path) -> None:
    said = run(project, "tests.trust.soak", "16000")
    assert said["cases"] == 16000
    assert said["generations"] > 0


def test_a_failing_disk(project: Path) -> None:
    words = ("tests.trust.kills", "write", "--faults", "--every", "90", "--pairs", "0")
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=project, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_watch_notices(tmp_path: Path) -> None:
    """Whatever a case may not do is found, and told apart."""

    def hungry() -> None:
        bytearray(80 << 20)

    def waiting() -> None:
        time.sleep(60)

    def curious() -> None:
        with Path("/etc/passwd").open() as stream:
            stream.read()

    def busy() -> None:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            pass

    assert watched(busy, megabytes=40, seconds=0.05, folders=[tmp_path]).kind == "slow"
    works = {
        "traceback": lambda: 1 // 0,
        "signal": os.abort,
        "memory": hungry,
        "hang": waiting,
        "wrong": lambda: "a wrong label",
        "escape": curious,
        "well": lambda: None,
    }
    for kind, work in works.items():
        seconds = 0.2 if kind == "hang" else 5.0
        assert watched(work, megabytes=40, seconds=seconds, folders=[tmp_path]).kind == kind
    started = watched(
        lambda: subprocess.run(["true"], check=True) and None, megabytes=40, seconds=5.0, folders=[]
    )
    assert started.kind == "escape"
    assert "subprocess.Popen" in started.said


def test_a_death_costs_one_case() -> None:
    def work(number: int) -> None:
        if number == 3:
            os.abort()

    found = endings(range(8), work, megabytes=40, seconds=5.0, together=6)
    assert [ending.kind for ending in found] == ["well"] * 3 + ["signal"] + ["well"] * 4
