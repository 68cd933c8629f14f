from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.lpld_core.networks import noisy_folder

Cli = Callable[..., Result]
NETWORK = ("--teacher", "tests.lpld_core.networks:tiny_net", "--size", "8", "--threads", "1")
SHORT = ("--ipc", "2", "--iterations", "3", "--format", "png", "--class-group", "2")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noisy_folder(tmp_path_factory.mktemp("recover") / "real", classes=3, images=9)


@pytest.fixture
def squeezed(cli: Cli, real: Path, tmp_path: Path) -> tuple[str, ...]:
    """Options for a trained teacher of the real images and its statistics."""
    teacher, statistics = tmp_path / "t.safetensors", tmp_path / "s.safetensors"
    network = (*NETWORK, "--teacher-weights", teacher)
    result = cli("squeeze", real, statistics, *network, "--train-teacher", "--epochs", 1)
    assert result.exit_code == 0, result.output
    return (*map(str, network), "--statistics", str(statistics))


def images(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*_*.png"))}


def test_images_by_every_method(cli: Cli, squeezed: tuple[str, ...], real: Path, tmp_path: Path) -> None:
    made: dict[Path, dict[str, bytes]] = {}
    for method, more in (
        ("lpld", ()),
        ("lpld", ("--statistics-kind", "global")),
        ("sre2l", ()),
        ("cda", ()),
        ("rded", ("--real", real)),
    ):
        out = tmp_path / f"out{len(made)}"
        result = cli("recover", out, *squeezed, *SHORT, "--method", method, *more)
        assert result.exit_code == 0, result.output
        assert re.search(r"made images\W+6", result.stdout)
        assert "contact_sheet.png" in result.stdout
        made[out] = images(out)
        record = json.loads((out / "recover.json").read_text())
        assert (record["method"], record["ipc"]) == (method, 2)
        expected = {f"class{c}/class{c}_{n:05d}.png" for c in range(3) for n in range(2)}
        assert set(made[out]) - {"contact_sheet.png"} == expected
    contents = [tuple(sorted(files.items())) for files in made.values()]
    assert len(set(contents)) == 5, "two methods made the same images"


def test_options_reach_the_settings(cli: Cli, squeezed: tuple[str, ...], real: Path, tmp_path: Path) -> None:
    def record(name: str, *options: object) -> dict[str, object]:
        result = cli("recover", tmp_path / name, *squeezed, *SHORT, *options)
        assert result.exit_code == 0, result.output
        found: dict[str, object] = json.loads((tmp_path / name / "recover.json").read_text())
        return found

    assert record("tiny")["roll_direction"] == "both"
    large = record("large", "--preset", "imagenet1k")
    assert (large["roll"], large["roll_direction"], large["learning_rate"]) == (32, "forward", 0.25)
    either = record("either", "--preset", "imagenet1k", "--lr", 0.5)
    assert (either["learning_rate"], either["alpha"]) == (0.5, 0.01)
    assert record("cda", "--method", "cda", "--seed", 3)["roll_direction"] == "forward"
    rded = record("rded", "--method", "rded", "--real", real)
    assert (rded["candidates"], rded["crops"], rded["format"], rded["quality"]) == (300, 5, "png", 95)


def test_second_run_keeps_what_is_there(cli: Cli, squeezed: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = json.loads(cli("recover", out, *squeezed, *SHORT, "--part", "1/2", "--json").stdout)
    assert (first["made_groups"], first["complete"], first["contact_sheet"]) == (1, False, None)
    second = json.loads(cli("recover", out, *squeezed, *SHORT, "--json").stdout)
    assert (second["made_groups"], second["kept_groups"], second["complete"]) == (1, 1, True)
    assert second["cross_entropy"] > 0
    whole = tmp_path / "whole"
    assert cli("recover", whole, *squeezed, *SHORT).exit_code == 0
    assert images(out) == images(whole)
    other = cli("recover", out, *squeezed, *SHORT, "--alpha", "0.5")
    assert other.exit_code == 1
    assert "'alpha' differs" in other.stderr


def test_overwrite_puts_another_run_in_place(cli: Cli, squeezed: tuple[str, ...], tmp_path: Path) -> None:
    out, fresh = tmp_path / "out", tmp_path / "fresh"
    assert cli("recover", out, *squeezed, *SHORT, "--seed", 1, "--ipc", 3).exit_code == 0
    again = ("--seed", 2)
    refused = cli("recover", out, *squeezed, *SHORT, *again)
    assert refused.exit_code == 1
    assert "--overwrite" in refused.stderr
    for folder in (out, fresh):
        result = cli("recover", folder, *squeezed, *SHORT, *again, "--overwrite")
        assert result.exit_code == 0, result.output
    assert images(out) == images(fresh), "nothing of the first run, which had more images, is left"


def test_statistics_of_another_teacher_are_refused(
    cli: Cli, squeezed: tuple[str, ...], real: Path, tmp_path: Path
) -> None:
    other = (*NETWORK, "--teacher-weights", "random", *squeezed[-2:])
    result = cli("recover", tmp_path / "out", *other, *SHORT)
    assert result.exit_code == 1
    # The random network has the four classes its maker gave it.
    assert "differ in their number of classes" in result.stderr
    teacher = tmp_path / "other.safetensors"
    retrained = (*NETWORK, "--teacher-weights", teacher)
    training = ("--train-teacher", "--epochs", 1, "--seed", 1)
    assert cli("squeeze", real, tmp_path / "s2.safetensors", *retrained, *training).exit_code == 0
    result = cli("recover", tmp_path / "out", *retrained, *squeezed[-2:], *SHORT)
    assert result.exit_code == 1
    assert "statistics were taken from another teacher" in result.stderr
    assert not (tmp_path / "out").exists()


def test_network_without_batchnorm_is_refused(cli: Cli, tmp_path: Path) -> None:
    network = ("--teacher", "tests.lpld_core.networks:tiny_net_without_batchnorm", "--size", "8")
    for method in ("sre2l", "cda"):
        result = cli(
            "recover", tmp_path / "out", *network, "--teacher-weights", "random", *SHORT, "--method", method
        )
        assert result.exit_code == 1
        assert "has no BatchNorm2d layer" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "lpld needs --statistics FILE"),
        (("--method", "rded"), "rded needs --real"),
        (("--method", "sre2l", "--part", "3/2"), "expected I/N"),
        (("--method", "magic"), "'magic' is not one of"),
    ],
)
def test_contradictory_options_are_usage_errors(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = cli("recover", tmp_path / "out", *NETWORK, "--teacher-weights", "random", *SHORT, *options)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (tmp_path / "out").exists()
