"""Options made from settings dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from lpld_cli.options import call_options, given_only

from lpld_core.settings import Part
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.settings import Setting, check_settings, values_of


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every kind of field."""

    ipc: Annotated[int, Setting("Images per class.", ge=1)]
    batch_size: Annotated[int | None, Setting("Rows.  [default: the pool's]", ge=1)] = None
    learning_rate: Annotated[float, Setting("Rate.", gt=0, le=1)] = 0.5
    by: Annotated[Literal["random", "diff"], Setting("How.")] = "random"
    heat: Annotated[float | Literal["same"], Setting("Of the output.", option=False, gt=0)] = "same"
    crop_scale: Annotated[tuple[float, float], Setting("Area.", ge=0, le=1)] = (0.1, 1.0)
    mean: Annotated[tuple[float, ...] | None, Setting("Normalisation.")] = None
    codecs: Annotated[tuple[str, ...], Setting("Codecs.")] = ()
    flip: Annotated[bool, Setting("Mirror.")] = True
    amp: Annotated[bool, Setting("Mixed precision.")] = False
    part: Annotated[Part | None, Setting("A share.")] = None
    cache: Annotated[Path | None, Setting("A directory.")] = None
    detail: Annotated[float, Setting("No option.", option=False, ge=0)] = 1.0
    free: str = ""

    def __post_init__(self) -> None:
        check_settings(self)


def run(*words: str, preset: Settings | None = None) -> tuple[Settings | None, str]:
    """Return the settings that a command line gives, and what was printed."""
    found: list[Settings] = []
    usual = None if preset is None else values_of(Settings, preset)

    def collect(**given: Any) -> None:
        found.append(Settings(**(usual or {}) | given_only(given)))

    command = click.command()(call_options(Settings, usual=usual)(collect))
    result = CliRunner().invoke(command, list(words))
    return (found[0] if found else None), result.output


def test_what_is_not_given_has_the_field_s_default() -> None:
    assert run("--ipc", "3")[0] == Settings(ipc=3)


def test_every_kind_of_field_is_parsed() -> None:
    words = "--ipc 3 -b 8 --lr 0.25 --by diff --crop-scale 0.2 0.9 --mean 1,2,3 --codec f16 --codec klt"
    settings, _ = run(*words.split(), "--no-flip", "--amp", "--part", "2/3", "--cache", "here")
    assert settings == Settings(
        ipc=3,
        batch_size=8,
        learning_rate=0.25,
        by="diff",
        crop_scale=(0.2, 0.9),
        mean=(1.0, 2.0, 3.0),
        codecs=("f16", "klt"),
        flip=False,
        amp=True,
        part=Part(number=2, of=3),
        cache=Path("here"),
    )


def test_options_replace_parts_of_a_preset() -> None:
    preset = Settings(ipc=7, by="diff", amp=True, detail=2.0)
    assert run(preset=preset)[0] == preset
    assert run("--no-amp", "--ipc", "1", preset=preset)[0] == Settings(ipc=1, by="diff", detail=2.0)
    assert "[default: 7]" in run("--help", preset=preset)[1]


def test_help_shows_default_range_and_choices() -> None:
    _, text = run("--help")
    text = " ".join(text.split())
    assert "-b, --batch-size INTEGER RANGE Rows. [default: the pool's] [x>=1]" in text
    assert "--lr FLOAT RANGE Rate. [default: 0.5] [0<x<=1]" in text
    assert "--by [random|diff] How. [default: random]" in text
    assert "--part I/N" in text
    assert "--mean R,G,B" in text
    assert "--ipc INTEGER RANGE Images per class. [x>=1; required]" in text
    assert "--detail" not in text
    assert "--free" not in text


@pytest.mark.parametrize(
    "words",
    [
        "--ipc 0",
        "--ipc 1 --lr 0",
        "--ipc 1 --lr nan",
        "--ipc 1 --by luck",
        "--ipc 1 --mean 1,2",
        "--ipc 1 --part 4/3",
    ],
)
def test_values_outside_of_range_or_choices_are_refused(words: str) -> None:
    settings, text = run(*words.split())
    assert settings is None
    assert f"Invalid value for '{words.split()[-2]}'" in text


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("ipc", 0, "a number >= 1"),
        ("learning_rate", float("nan"), "a number > 0 and <= 1"),
        ("by", "luck", "one of random, diff"),
        ("by", None, "one of random, diff"),
        ("heat", "hot", "one of same or a number"),
        ("heat", 0.0, "a number > 0"),
        ("crop_scale", (0.1, 1.5), "a number >= 0 and <= 1"),
        ("detail", -1.0, "a number >= 0"),
    ],
)
def test_the_dataclass_itself_refuses_them_too(field: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field.replace('_', ' ')} is wrong.*{expected}"):
        Settings(**{"ipc": 1, field: value})
