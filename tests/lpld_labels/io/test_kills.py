"""Copies killed at random moments: no half pool under a manifest, and the same copy finishes it.

LPLD_KILL_MOMENTS=20 tries as many moments each way (`make kills`).
"""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lpld_labels.errors import NotAPoolError
from lpld_labels.inspect.check import check_pool
from lpld_labels.transforms.copy import copy_pool
from tests.lpld_labels.io.pools import content, small_pool
from tests.servers.proxy import Proxy

MOMENTS = int(os.environ.get("LPLD_KILL_MOMENTS", "2"))
COPY = """
import sys
from lpld_labels.transforms.copy import copy_pool
import fsspec, s3fs
print("ready", flush=True)
copy_pool(sys.argv[1], sys.argv[2])
"""


def killed_copy(source: object, target: object, seconds: float) -> bool:
    words = [sys.executable, "-c", COPY, str(source), str(target)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        time.sleep(seconds)
        running = process.poll() is None
        process.kill()
    return running


@pytest.mark.timeout(max(300, 60 * MOMENTS))
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_killed_copy_is_no_pool_and_resumes(way: str, bucket: str, s3_proxy: Proxy, tmp_path: Path) -> None:
    pool = small_pool(tmp_path / "pool", shards=6, epochs=12)
    copy_pool(pool, f"{bucket}/source")
    s3_proxy.behave(latency=0.03)
    moments = random.Random(int.from_bytes(os.urandom(4), "little"))
    interrupted = 0
    for number in range(MOMENTS):
        source: Path | str = pool if way == "up" else f"{bucket}/source"
        target: Path | str = f"{bucket}/{number}" if way == "up" else tmp_path / str(number)
        seconds = moments.uniform(0.0, 0.9)
        interrupted += killed_copy(source, target, seconds)
        try:
            left = check_pool(target)
        except NotAPoolError:
            left = None
        assert left is None or left.whole, f"killed after {seconds} s: {left}"
        copy_pool(source, target)
        assert check_pool(target).whole
        assert content(target) == content(pool)
    assert interrupted
