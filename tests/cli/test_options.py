from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click
import pytest
from click.testing import CliRunner
from lpld_cli.main import LAZY_COMMANDS, group
from lpld_cli.options import (
    BUDGET,
    NUMBER,
    PART,
    POOL_BUDGET,
    TEXT,
    Number,
    NumberRange,
    call_options,
    given_only,
)

from lpld_core.settings import Part
from lpld_labels.settings import Setting, values_of


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every kind of field."""

    ipc: Annotated[int, Setting("Images per class.", ge=1)]
    batch_size: Annotated[int | None, Setting("Rows.  [default: the pool's]", ge=1)] = None
    learning_rate: Annotated[float, Setting("Rate.", gt=0, le=1)] = 0.5
    by: Annotated[Literal["random", "diff"], Setting("How.")] = "random"
    crop_scale: Annotated[tuple[float, float], Setting("Area.", ge=0, le=1)] = (0.1, 1.0)
    mean: Annotated[tuple[float, ...] | None, Setting("Normalisation.")] = None
    codecs: Annotated[tuple[str, ...], Setting("Codecs.")] = ()
    flip: Annotated[bool, Setting("Mirror.")] = True
    amp: Annotated[bool, Setting("Mixed precision.")] = False
    part: Annotated[Part | None, Setting("A share.")] = None
    cache: Annotated[Path | None, Setting("A directory.")] = None
    detail: Annotated[float, Setting("No option.", option=False, ge=0)] = 1.0
    free: str = ""


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


def test_a_letter_means_the_same_in_every_command() -> None:
    found: dict[str, set[str]] = {}
    context = click.Context(group)
    commands = [group, *filter(None, (group.get_command(context, name) for name in LAZY_COMMANDS))]
    assert len(commands) == 1 + len(LAZY_COMMANDS)
    for command in commands:
        for option in command.params:
            long = [word for word in option.opts if word.startswith("--")]
            for letter in set(option.opts) - set(long):
                if isinstance(option, click.Option):
                    found.setdefault(letter, set()).update(long)
    assert found == {"-b": {"--batch-size"}, "-j": {"--jobs"}, "-q": {"--quiet"}, "-v": {"--verbose"}}


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
    ("text", "number", "of"),
    [
        ("4000", 4000, "bytes"),
        ("30k", 30_000, "bytes"),
        ("300MB", 300_000_000, "bytes"),
        ("1 GiB", 2**30, "bytes"),
        ("1.5Gi", 1.5 * 2**30, "bytes"),
        ("10%", 0.1, "pool"),
        ("0.5x", 0.5, "pool"),
        ("1.0x-images", 1, "images"),
    ],
)
def test_sizes_as_people_write_them(text: str, number: float, of: str) -> None:
    found = BUDGET.convert(text, None, None)
    assert (found.number, found.of) == (pytest.approx(number), of)
    assert found.bytes(pool=1000, images=50) == int(number * {"bytes": 1, "pool": 1000, "images": 50}[of])


@pytest.mark.parametrize("text", ["much", "30Q", "-3", "0", "0%", "0x", "", "MB", "1x-images", "9" * 400])
def test_what_is_no_size_is_answered_with_all_forms(text: str) -> None:
    with pytest.raises(click.BadParameter) as caught:
        POOL_BUDGET.convert(text, None, None)
    for form in ("300MB", "30K", "1 GiB", "4000", "10%", "0.5x"):
        assert form in str(caught.value)


def test_every_option_knows_finite_numbers_and_text() -> None:
    for name in LAZY_COMMANDS:
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


def test_text_can_be_written_down_and_parts_have_an_end() -> None:
    assert TEXT.convert("é", None, None) == "é"
    with pytest.raises(click.BadParameter, match=r"udcff"):
        TEXT.convert("a\udcff", None, None)
    with pytest.raises(click.BadParameter, match="expected I/N"):
        PART.convert("1/" + "9" * 5000, None, None)
