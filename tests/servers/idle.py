"""Waiting for threads that fetch ahead, so that one test's requests are not counted as another's."""

import gc
import threading
import time

_NAMES = ("fetch", "read-ahead")


def fetching() -> bool:
    """Return whether a pool that was opened in this process has threads that fetch for it."""
    return any(thread.name.startswith(_NAMES) for thread in threading.enumerate())


def wait_until_idle(seconds: float = 10.0) -> bool:
    """Wait for them to end, which those of a pool that was let go do; return whether they have."""
    until = time.monotonic() + seconds
    while fetching():
        if time.monotonic() > until:
            return False
        gc.collect()
        time.sleep(0.02)
    return True
