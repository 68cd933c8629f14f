"""The way into a Ray cluster: one that is running, or one of this machine alone while it is needed."""

from __future__ import annotations

import importlib
import logging
import os
import socket
import types
from dataclasses import dataclass

from lpld_labels.errors import ClusterError

CONNECT_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, kw_only=True)
class RaySettings:
    """Which cluster, and what a task needs of it.

    address: HOST:PORT of the cluster's head; None to start Ray on this machine, for this job alone.
    workers: how many at most; None for as many as there is room for.
    gpus_per_task, cpus_per_task: what a worker holds while it lives; parts of a GPU may be shared.
    """

    address: str | None = None
    workers: int | None = None
    gpus_per_task: float = 0.0
    cpus_per_task: float = 1.0


class RaySession:
    """A connection to Ray; what it started goes when it is closed."""

    def __init__(self, settings: RaySettings) -> None:
        """Connect, or say in one line what is in the way."""
        self._settings = settings
        self.ray = _ray_module(local=_is_local(settings.address))
        self._ours = not self.ray.is_initialized()
        if self._ours:
            self._connect()
        try:
            self.workers = self._count_workers()
        except ClusterError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the cluster, or end it if it was started here."""
        if self._ours:
            self.ray.shutdown()

    def _connect(self) -> None:
        settings = self._settings
        quietly = {"log_to_driver": False, "configure_logging": False}
        # What Ray says of itself when it starts is no news of the job.
        logging.getLogger("ray").setLevel(logging.ERROR)
        if settings.address is None:
            cpus = max(os.cpu_count() or 1, int((settings.workers or 1) * settings.cpus_per_task + 0.999))
            self.ray.init(address="local", num_cpus=cpus, include_dashboard=False, **quietly)
            return
        _require_listener(settings.address)
        try:
            self.ray.init(address=settings.address, **quietly)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise _no_cluster(settings.address, str(error).partition("\n")[0]) from None

    def _count_workers(self) -> int:
        """Return how many workers there will be; refuse a cluster without room for one."""
        wanted = {"CPU": self._settings.cpus_per_task, "GPU": self._settings.gpus_per_task}
        wanted = {name: amount for name, amount in wanted.items() if amount > 0}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        room = sum(min(int(node.get(name, 0) / amount) for name, amount in wanted.items()) for node in nodes)
        if room == 0:
            raise ClusterError(
                "no machine of the cluster has room for a task",
                where=self._settings.address or "Ray on this machine",
                expected=", ".join(f"{amount:g} {name}" for name, amount in wanted.items()),
                got="; ".join(
                    ", ".join(f"{node.get(name, 0):g} {name}" for name in wanted) for node in nodes
                ),
                hint="ask for less (--cpus-per-task, --gpus-per-task), or add machines",
            )
        return self._settings.workers or room


def require_ray(settings: RaySettings) -> None:
    """Refuse, before anything is read, what cannot work: Ray not installed, an address that is none."""
    _ray_module(local=_is_local(settings.address))
    if settings.cpus_per_task <= 0 and settings.gpus_per_task <= 0:
        raise ClusterError(
            "a task must hold something", hint="give --cpus-per-task or --gpus-per-task above 0"
        )
    if settings.address is not None:
        _require_listener(settings.address)


def _ray_module(*, local: bool) -> types.ModuleType:
    """Import Ray: no usage reports, and of this machine alone only its own address."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray says about a future default is for its own developers.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if local:
        # Ray's name for "listen on 127.0.0.1 only, and do not replace it by an address others can reach".
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ClusterError(
            "Ray is not installed", hint="pip install 'lpld-labels[ray]', or use --engine local"
        ) from None


def _is_local(address: str | None) -> bool:
    return address is None or address.rpartition(":")[0] in _LOOPBACK


def _require_listener(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ClusterError(
            "not the address of a Ray cluster",
            expected="HOST:PORT of its head, as 'ray start --head' prints it",
            got=address,
        )
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, str(error)) from None


def _no_cluster(address: str, reason: str) -> ClusterError:
    return ClusterError(
        f"no Ray cluster answers: {reason}",
        where=address,
        hint="start one (ray start --head) and this machine's part of it, or leave out --ray-address",
    )
