"""The process that hands tasks out is killed; the same command goes on from what was sealed."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.engines.commands import COMMANDS
from tests.engines.ray_cluster import MOST_SECONDS, WHOLE, TwoNodes

CASES = [("encode", "joined")]
if WHOLE:
    CASES = [
        *((name, "joined") for name in COMMANDS),
        ("encode", "started here"),
        ("recover", "started here"),
    ]
SEALED = {
    "build": "out.partial/records/[0-9]*",
    "encode": "out.partial/records/[0-9]*",
    "import": "out.partial/records/[0-9]*",
    "squeeze": "out/classes-*[0-9a-f].safetensors",
    "recover": "out/class*/*.png",
}
"""What a finished task leaves beside or in the output."""
FILES = {"recover": 3}
"""How many of those show that one is done, if not 1: recovery's two workers write two images a task."""


@contextlib.contextmanager
def driver(name: str, source: Path, out: Path, *address: str) -> Iterator[subprocess.Popen[str]]:
    """Start a driver; it is gone when the block ends."""
    words = [sys.executable, "-m", "tests.engines.driver", name, str(source), str(out), *address]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_until_sealed(process: subprocess.Popen[str], work: Path, name: str) -> None:
    end = time.monotonic() + MOST_SECONDS
    while len(list(work.glob(SEALED[name]))) < FILES.get(name, 1):
        assert process.poll() is None, "it was done before it could be killed"
        assert time.monotonic() < end
        time.sleep(0.02)


def finished(process: subprocess.Popen[str]) -> tuple[str, int]:
    """Return the content that a driver has made, and how many units had been left to do."""
    stdout, stderr = process.communicate(timeout=MOST_SECONDS)
    assert process.returncode == 0, stderr
    assert stderr == "", "Ray speaks of itself"
    content, left = stdout.split()
    return content, int(left)


@pytest.mark.timeout(3 * MOST_SECONDS)
@pytest.mark.parametrize(("name", "ray"), CASES)
def test_the_same_command_goes_on(name: str, ray: str, cluster: TwoNodes, tmp_path: Path) -> None:
    out = tmp_path / "out"
    address = (cluster.address,) if ray == "joined" else ()
    COMMANDS[name].make(tmp_path / "source")
    with driver(name, tmp_path / "source", tmp_path / "expected", *address) as whole:
        expected, total = finished(whole)
    with driver(name, tmp_path / "source", out, *address) as first:
        wait_until_sealed(first, tmp_path, name)
        started = psutil.Process(first.pid).children(recursive=True)
    # At once, while workers of the first may still be at work.
    with driver(name, tmp_path / "source", out, *address) as second:
        content, left = finished(second)
    assert content == expected
    # Workers may finish everything before the driver is killed.
    assert left < total
    _, alive = psutil.wait_procs(started, timeout=MOST_SECONDS)
    assert not alive, "what the first had started has outlived it"
