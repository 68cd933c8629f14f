"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from hypothesis import settings

PROJECT = Path(__file__).resolve().parent.parent
SHARED_DATA = Path(os.environ.get("LPLD_SHARED_DATA", PROJECT.parent / "shared" / "data"))

# Continuous integration draws the same examples every time; elsewhere each run explores new ones.
# No example has a deadline: how long one takes says how busy the machine is.
settings.register_profile("new-every-time", deadline=None)
settings.register_profile("same-every-time", deadline=None, derandomize=True)
settings.load_profile("same-every-time" if os.environ.get("CI") else "new-every-time")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Directory with real logits, reference pools and images."""
    if SHARED_DATA.is_dir():
        return SHARED_DATA
    message = f"shared data not found at {SHARED_DATA}; set LPLD_SHARED_DATA"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


@pytest.fixture(scope="session")
def project() -> Path:
    """Root of the repository."""
    return PROJECT


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
