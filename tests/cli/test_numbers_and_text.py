"""What is no number or no text is refused where it enters, by every command in one line."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import Result
from lpld_cli.main import LAZY_COMMANDS, group
from lpld_cli.options import NUMBER, PART, POOL_BUDGET, TEXT, Number, NumberRange

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.inspect.card import card_text
from lpld_labels.pool.pool_files import manifest_of
from lpld_labels.transforms.settings import EncodeSettings
from tests.cli.build_runs import one_line_error
from tests.factories import make_batches, write_pool

Cli = Callable[..., Result]
NO_TEXT = "a\udcff"


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    return tmp_path / "pool"


@pytest.mark.parametrize("name", LAZY_COMMANDS)
def test_every_option_knows_finite_numbers_and_text(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None
    for param in command.params:
        if isinstance(param.type, click.types.FloatParamType):
            assert isinstance(param.type, Number), param.opts
        assert type(param.type) is not click.types.StringParamType, param.opts


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999", "x"])
def test_a_number_is_finite(text: str) -> None:
    for kind in (NUMBER, NumberRange(0), NumberRange(0, 1, min_open=True)):
        with pytest.raises(click.BadParameter):
            kind.convert(text, None, None)
    assert NUMBER.convert("-1e3", None, None) == -1000
    with pytest.raises(click.BadParameter):
        NumberRange(1).convert("0.5", None, None)


def test_text_can_be_written_down() -> None:
    assert TEXT.convert("é", None, None) == "é"
    with pytest.raises(click.BadParameter, match=r"udcff"):
        TEXT.convert(NO_TEXT, None, None)


def test_sizes_and_parts_have_an_end() -> None:
    with pytest.raises(click.BadParameter, match="not a size"):
        POOL_BUDGET.convert("9" * 400, None, None)
    with pytest.raises(click.BadParameter, match="expected I/N"):
        PART.convert("1/" + "9" * 5000, None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("encode", "POOL", "OUT", "--codec", "klt", "--fidelity", "nan"), "--fidelity"),
        (("encode", "POOL", "OUT", "--codec", "klt", "--temperature", "inf"), "--temperature"),
        (("plan", "POOL", "--budget", "1K", "--min-fidelity", "nan"), "--min-fidelity"),
        (("prune", "POOL", "OUT", "--ratio", "nan"), "--ratio"),
        (("train", "POOL", "--images", "OUT", "--lr", "nan"), "--lr"),
        (("build", "POOL", "OUT", "--mean", "nan,0,0", "--std", "1,1,1"), "--mean"),
        (("verify", "POOL", "--tolerance", "nan"), "--tolerance"),
        (("build", "POOL", "OUT", "--teacher", NO_TEXT), "--teacher"),
        (("inspect", "POOL", "--card", "--name", NO_TEXT), "--name"),
        (("train", "POOL", "--images", "OUT", "--student", NO_TEXT), "--student"),
    ],
)
def test_commands_say_it_in_one_line(
    cli: Cli, pool: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    places = {"POOL": pool, "OUT": tmp_path / "out"}
    one_line_error(cli(*(places.get(word, word) for word in words)), said, code=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "demand",
    [
        {"fidelity": math.nan},
        {"fidelity": 1.5},
        {"temperature": math.nan},
    ],
)
def test_a_codec_that_cannot_be_is_refused_when_it_is_asked_for(demand: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"is wrong|out of range"):
        EncodeSettings(codec="klt", **demand)


def test_a_pool_in_a_directory_that_is_no_text_needs_a_name_for_its_card(pool: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"expected text.*--name"):
        card_text(manifest_of(pool), name=NO_TEXT)


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_trouble(pool: Path, tmp_path: Path, closed: str) -> None:
    """The file that is opened next would take the number of a closed stream, and what is printed."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        script = f'exec "$0" -m lpld_cli "$@" {closed}'
        command = ["sh", "-c", script, sys.executable, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for words in (("inspect", pool), ("encode", pool, tmp_path / "out", "--codec", "int8"), ("verify", pool)):
        done = run(*words)
        assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    assert run("inspect", tmp_path / "none").returncode == 1
    again = subprocess.run([sys.executable, "-m", "lpld_cli", "verify", tmp_path / "out"], check=False)
    assert again.returncode == 0
