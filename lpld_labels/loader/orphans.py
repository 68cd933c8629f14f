"""Workers that do not outlive the training process, however it ends.

A DataLoader's worker notices that its parent is gone and leaves its loop, but on its way out it waits
until its results are written to their pipe. Nobody reads that pipe any more, and it is never broken,
because every worker holds a copy of its reading end: results larger than what the pipe takes (64 KiB;
labels are) keep the worker there for ever, with all its memory.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing import connection

CHECK_SECONDS = 1.0


def watch_parent(worker: int) -> None:
    """End this process as soon as its parent is gone; given to DataLoader as worker_init_fn."""
    del worker
    threading.Thread(target=_outlast, args=(os.getppid(),), name="parent watch", daemon=True).start()


def _outlast(parent: int) -> None:
    process = multiprocessing.parent_process()
    sentinels = [process.sentinel] if process is not None else []
    # The sentinel also knows of a parent that was gone before this thread began, and of one behind a
    # fork server; the number also of one whose end of the sentinel another process has inherited.
    while os.getppid() == parent and not connection.wait(sentinels, CHECK_SECONDS):
        pass
    # No clean-up: it is the clean-up that hangs. The memory goes with the process.
    os._exit(1)
