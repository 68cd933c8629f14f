"""A small part of each campaign; `make trust` runs all of them."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.trust import children
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


@pytest.mark.parametrize(
    ("campaign", "least"),
    [
        # What does no harm hit bytes that nobody reads: footers and keys of labels files.
        ("damage.campaign 400", {"refused": 281, "well": 21}),
        ("hostile pools 40", {"refused": 25}),
        ("hostile label-files 30", {"refused": 15}),
        ("hostile images 600", {"refused": 300}),
        # Two and three writers, a reader beside a writer, a pruning of a pool that grows.
        ("races 4", {"well": 11}),
    ],
)
def test_a_part_of_a_campaign(project: Path, campaign: str, least: dict[str, int]) -> None:
    words = f"tests.trust.{campaign}".split()
    said = run(project, *words)
    assert said.get("rounds", said["cases"]) == int(words[-1])
    assert all(said["kinds"][kind] >= count for kind, count in least.items())


def test_soak(project: Path) -> None:
    said = run(project, "tests.trust.soak", "6000")
    assert said["cases"] == 6000
    assert said["generations"] > 0


def test_the_watch_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a case may not do is found and named."""
    monkeypatch.setattr(children, "_GRACE", 1.0)

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
