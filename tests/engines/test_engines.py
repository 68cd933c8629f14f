"""The same content from every engine, however many workers it has and whatever dies on the way.

The normal run has a sample; `make engines` has all of it.
"""

import functools
import threading
from pathlib import Path
from typing import Any

import pytest

from lpld_labels.exec.local import ONE_PROCESS, LocalExecutor
from lpld_labels.exec.ray import RayExecutor, RaySettings
from tests.engines.commands import COMMANDS
from tests.engines.driver import SlowExecutor
from tests.engines.ray_cluster import WHOLE, TwoNodes

KILLS = 5 if WHOLE else 2
KILLED = list(COMMANDS) if WHOLE else ["encode"]
UNDISTURBED = list(COMMANDS) if WHOLE else ["build", "import", "recover"]
WORKERS = [1, 3] if WHOLE else [2]
PROCESSES = 3 if WHOLE else 2
LOCAL = list(COMMANDS) if WHOLE else ["squeeze", "recover"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function that gives a command's input and what comes of it in this process."""

    @functools.cache
    def make(name: str) -> tuple[Path, str]:
        source = tmp_path_factory.mktemp(name)
        COMMANDS[name].make(source)
        return source, COMMANDS[name].run(source, source / "expected", ONE_PROCESS)

    return make


@pytest.mark.parametrize("name", LOCAL)
def test_processes(name: str, made: Any, tmp_path: Path) -> None:
    source, expected = made(name)
    assert COMMANDS[name].run(source, tmp_path / "out", LocalExecutor(PROCESSES)) == expected


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("name", UNDISTURBED)
def test_ray(name: str, workers: int, made: Any, cluster: TwoNodes, tmp_path: Path) -> None:
    source, expected = made(name)
    with RayExecutor(RaySettings(address=cluster.address, workers=workers)) as engine:
        assert COMMANDS[name].run(source, tmp_path / "out", engine) == expected


@pytest.mark.parametrize("name", KILLED)
def test_ray_with_workers_and_a_node_killed(name: str, made: Any, cluster: TwoNodes, tmp_path: Path) -> None:
    source, expected = made(name)
    cluster.add_node()
    kills = 0
    over = threading.Event()

    def disturb() -> None:
        nonlocal kills
        while kills < KILLS and not over.wait(0.2):
            kills += cluster.kill_worker()
        cluster.kill_node()

    killer = threading.Thread(target=disturb)
    killer.start()
    settings = RaySettings(address=cluster.address, workers=4)
    try:
        engine = SlowExecutor(settings)
        with engine:
            found = COMMANDS[name].run(source, tmp_path / "out", engine)
    finally:
        over.set()
        killer.join()
    assert found == expected
    assert kills == KILLS
    assert engine.retried >= KILLS
