"""A Ray cluster of two nodes on this machine, any of whose workers, or one of whose nodes, can be killed."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import psutil

# Before Ray is imported, here or in what tests start.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
# Else Ray ends workers when other programs have filled the memory of the machine that tests run on.
os.environ.update(RAY_memory_monitor_refresh_ms="0")
WHOLE = bool(os.environ.get("LPLD_WHOLE_ENGINES"))
"""Whether to run everything (`make engines`), not a sample."""
STORE_BYTES = 80 * 2**20
MOST_SECONDS = 200.0
"""How long anything here may take before a test fails."""
AT_WORK = "ray::RayWorker.do"
"""What Ray calls a process while it does a task."""


class TwoNodes:
    """The cluster; `address` is that of its head. Each node has room for three tasks."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._node: dict[str, Any] = {
            "num_cpus": 3,
            "node_ip_address": "127.0.0.1",
            "include_dashboard": False,
            "object_store_memory": STORE_BYTES,
        }
        self._cluster: Any = Cluster(initialize_head=True, head_node_args=self._node)
        self._second: Any = None
        self.address: str = self._cluster.address

    def add_node(self) -> None:
        """Add the second node, if it is not there."""
        if self._second is None:
            self._second = self._cluster.add_node(**self._node)

    def kill_node(self) -> None:
        """Take the second node away at once, with all that runs there; wait until the head has noticed.

        It notices seconds later, or many seconds under load. It then tells every driver, and until then it
        gives workers places on that node: both would disturb the test that runs at that moment.
        """
        self._cluster.remove_node(self._second, allow_graceful=False)
        self._second = None
        self._cluster.wait_for_nodes(timeout=MOST_SECONDS)

    def workers(self) -> list[psutil.Process]:
        """Return the processes that do tasks now."""
        return [process for process in _processes() if process.cmdline()[:1] == [AT_WORK]]

    def kill_worker(self) -> bool:
        """Kill a process in the middle of a task; return whether there was one."""
        for process in self.workers():
            with contextlib.suppress(psutil.NoSuchProcess):
                # Held first, and looked at again: it may have finished its task since it was listed.
                process.suspend()
                if process.cmdline()[:1] == [AT_WORK]:
                    process.kill()
                    return True
                process.resume()
        return False

    def shutdown(self) -> None:
        """End everything."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()


def _processes() -> Iterator[psutil.Process]:
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.cmdline()
            yield process
