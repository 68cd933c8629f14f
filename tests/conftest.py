"""Fixtures shared by all tests."""

import logging
import os
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import settings

pytest_plugins = ["tests.servers.fixtures"]

# Test processes side by side have a core each: threads that wait for each other take minutes for the work of
# seconds. Set before torch and BLAS are loaded; programs that tests start inherit it.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# Some runners set the width of a terminal that is not there, and tables would fit themselves to it.
os.environ.pop("COLUMNS", None)

PROJECT = Path(__file__).resolve().parent.parent
SHARED_DATA = Path(os.environ.get("LPLD_SHARED_DATA", PROJECT.parent / "shared" / "data"))
REQUIRED = bool(os.environ.get("LPLD_REQUIRE"))
"""Set where a skipped test would go unnoticed, as in `.ci/run`: extra data that is there has to be whole, the
browser has to be there, and property tests draw the same examples every time."""

# Where nothing is required, each run explores new examples.
# No example has a deadline: how long one takes says how busy the machine is.
# Hypothesis begins with a profile of its own where CI is set; ours are made from the usual one everywhere.
_usual = settings.get_profile("default")
settings.register_profile("new-every-time", _usual, deadline=None)
settings.register_profile("same-every-time", _usual, deadline=None, derandomize=True)
settings.load_profile("same-every-time" if REQUIRED else "new-every-time")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory with label folders that the authors' programs wrote, and their images."""
    missing = [name for name in ("reference_pools", "reference_images") if not (SHARED_DATA / name).is_dir()]
    if not missing:
        return SHARED_DATA
    message = f"needs the authors' label folders: no {missing[0]} in {SHARED_DATA} (LPLD_SHARED_DATA)"
    if REQUIRED and SHARED_DATA.parent.is_dir():
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def project() -> Path:
    """Root of the repository."""
    return PROJECT


@pytest.fixture
def reused() -> Iterator[list[str]]:
    """What jobs say about the work they reuse."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lpld_labels.reuse")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Networks of tests are so small that a second thread only waits for the first."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the installed console script in this process: cli("inspect", path) -> Result."""
    (script,) = entry_points(group="console_scripts", name="lpld-labels")
    main = script.load()

    @click.command(add_help_option=False, context_settings={"ignore_unknown_options": True})
    def start() -> None:
        main()

    def invoke(*arguments: object) -> Result:
        words = [str(argument) for argument in arguments]
        monkeypatch.setattr("sys.argv", ["lpld-labels", *words])
        return CliRunner().invoke(start, [])

    return invoke
