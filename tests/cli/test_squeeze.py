from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_core.squeeze.statistics import ClassStatistics
from tests.lpld_core.networks import noisy_folder

Cli = Callable[..., Result]
TINY = ("--teacher", "tests.lpld_core.networks:tiny_net", "--teacher-weights", "random", "--size", "8")


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noisy_folder(tmp_path_factory.mktemp("squeeze") / "real", classes=3, images=6)


def test_statistics_are_saved_and_described(cli: Cli, real: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.safetensors"
    result = cli("squeeze", real, out, *TINY, "--batch-size", 4)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.stdout.replace("│", " ").split())
    for fact in ("update exact", "classes 3", "layers 2", "images 18", "model bytes", "bound available 5"):
        assert fact in shown
    assert "bound one pass suffices no" in shown
    statistics = ClassStatistics.load(out)
    assert statistics.class_names == ("class0", "class1", "class2")
    assert statistics.counts.tolist() == [6, 6, 6]


def test_json_gives_size_and_bound(cli: Cli, real: Path, tmp_path: Path) -> None:
    result = cli("squeeze", real, tmp_path / "s.safetensors", *TINY, "--update", "ema", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["update"] == "ema"
    assert document["bytes"] == 3 * (6 + 8) * 2 * 4
    assert document["model_bytes"] > 0
    assert document["bound"]["one_pass_suffices"] is False
    assert document["bound"]["required"] > document["bound"]["available"]


def test_random_views_in_several_passes(cli: Cli, real: Path, tmp_path: Path) -> None:
    out = tmp_path / "s.safetensors"
    result = cli("squeeze", real, out, *TINY, "--views", "crop", "--passes", 3)
    assert result.exit_code == 0, result.output
    assert re.search(r"images\W+54", result.stdout)
    statistics = ClassStatistics.load(out)
    assert (statistics.views, statistics.passes, statistics.counts.tolist()) == ("crop", 3, [18, 18, 18])
    again = cli("squeeze", real, tmp_path / "t.safetensors", *TINY, "--views", "crop", "--json")
    document = json.loads(again.stdout)
    assert (document["views"], document["passes"], document["images"]) == ("crop", 1, 18)
    idle = cli("squeeze", real, tmp_path / "u.safetensors", *TINY, "--passes", 2)
    assert idle.exit_code == 1
    assert "a centre looks the same every time" in idle.stderr


def test_unsettled_averages_are_warned_of(cli: Cli, real: Path, tmp_path: Path) -> None:
    result = cli("squeeze", real, tmp_path / "s.safetensors", *TINY, "--update", "ema")
    assert "use --update exact or --passes" in result.stderr
    needed = result.stderr.strip().split()[-1]
    enough = cli("squeeze", real, tmp_path / "t.safetensors", *TINY, "--update", "ema", "--passes", needed)
    assert enough.exit_code == 0, enough.output
    assert "warning" not in enough.stderr


def test_teacher_is_trained_first(cli: Cli, real: Path, tmp_path: Path) -> None:
    network = ("--teacher", "small-resnet10:width=2", "--teacher-weights", tmp_path / "t.safetensors")
    training = ("--train-teacher", "--size", 16, "--epochs", 1, "--val", real)
    others = noisy_folder(tmp_path / "val", classes=3, images=1)
    (others / "class1").rename(others / "cat")
    refused = cli("squeeze", real, tmp_path / "s.safetensors", *network, *training[:-1], others)
    assert refused.exit_code == 1
    assert "first class 0 (expected class0, got cat)" in refused.stderr
    assert not (tmp_path / "t.safetensors.unfinished").exists()
    result = cli("squeeze", real, tmp_path / "s.safetensors", *network, *training)
    assert result.exit_code == 0, result.output
    assert "teacher top1" in result.stdout
    again = cli("squeeze", real, tmp_path / "s.safetensors", *network, *training)
    assert again.exit_code == 0
    assert "is there already, from the same squeeze" in again.stderr
    assert again.stdout == result.stdout
    other = cli("squeeze", real, tmp_path / "s.safetensors", *network, *training, "--epochs", 2)
    assert other.exit_code == 1
    assert "another teacher is here: 'epochs' differs (expected 1, got 2)" in other.stderr
    # Its file says size and class count, and data of other classes is refused.
    assert cli("squeeze", real, tmp_path / "s.safetensors", *network).exit_code == 0
    two = noisy_folder(tmp_path / "two", classes=2, images=3)
    refused = cli("squeeze", two, tmp_path / "s2.safetensors", *network)
    assert refused.exit_code == 1
    assert "differ in their number of classes" in refused.stderr
    assert not (tmp_path / "s2.safetensors").exists()


def test_network_without_batchnorm_is_refused(cli: Cli, real: Path, tmp_path: Path) -> None:
    network = ("--teacher", "tests.lpld_core.networks:tiny_net_without_batchnorm", *TINY[2:])
    result = cli("squeeze", real, tmp_path / "s.safetensors", *network)
    assert result.exit_code == 1
    assert result.stderr.startswith(
        "error: teacher tests.lpld_core.networks:tiny_net_without_batchnorm has no"
    )
    assert list(tmp_path.iterdir()) == []


def test_out_may_be_in_a_directory_to_come(cli: Cli, real: Path, tmp_path: Path) -> None:
    """It was found missing after the whole pass."""
    out = tmp_path / "new" / "deep" / "s.st"
    result = cli("squeeze", real, out, *TINY)
    assert result.exit_code == 0, result.output
    assert [path.name for path in out.parent.iterdir()] == ["s.st"]
    assert ClassStatistics.load(out).classes == 3


def test_out_that_cannot_be_is_told_before_any_work(cli: Cli, real: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    result = cli("squeeze", real, tmp_path / "file" / "s.safetensors", *TINY)
    assert result.exit_code == 1
    assert "part of the path is not a directory" in result.stderr
    assert "squeezing" not in result.stderr


def test_files_that_are_no_images_are_named(cli: Cli, tmp_path: Path) -> None:
    root = noisy_folder(tmp_path / "real", classes=3, images=2)
    for name in ("a.gif", "b.txt", "c.mp4", "d.txt"):
        (root / "class1" / name).write_text("not an image")
    result = cli("squeeze", root, tmp_path / "s.safetensors", *TINY)
    assert result.exit_code == 0, result.output
    assert "4 files" in result.stderr
    assert "class1/a.gif, class1/b.txt, class1/c.mp4, ..." in result.stderr


def test_a_network_that_cannot_be_trained_is_told_before_any_work(
    cli: Cli, real: Path, tmp_path: Path
) -> None:
    weights = ("--teacher-weights", tmp_path / "t.safetensors", "--train-teacher", "--epochs", 1)
    for name, message in (
        ("resnet1888", "unknown network"),
        ("tests.lpld_core.networks:tiny_net_without_batchnorm", "has no"),
    ):
        result = cli("squeeze", real, tmp_path / "s.safetensors", "--teacher", name, *weights)
        assert result.exit_code == 1
        assert message in result.stderr
        assert list(tmp_path.iterdir()) == []


def test_class_without_images_is_named(cli: Cli, tmp_path: Path) -> None:
    root = noisy_folder(tmp_path / "real", classes=2, images=2)
    (root / "empty").mkdir()
    result = cli("squeeze", root, tmp_path / "s.safetensors", *TINY)
    assert result.exit_code == 1
    assert "empty: class folder holds no images" in result.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--epochs", "3"), "go with --train-teacher"),
        (("--train-teacher",), "needs --teacher-weights FILE"),
        (("--device", "nowhere"), "not usable here"),
    ],
)
def test_contradictory_options_are_usage_errors(
    cli: Cli, real: Path, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    result = cli("squeeze", real, tmp_path / "s.safetensors", *TINY, *options)
    assert result.exit_code == 2
    assert message in result.stderr
