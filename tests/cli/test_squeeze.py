from pathlib import Path

import pytest

from lpld_core.squeeze.statistics import ClassStatistics
from tests.cli.build_runs import TINY, Cli, facts, one_line_error, passed, words_of
from tests.lpld_core.networks import noisy_folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return noisy_folder(tmp_path_factory.mktemp("squeeze") / "real", classes=3, images=6)


def test_statistics_are_saved_and_described(cli: Cli, real: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "deep" / "s.safetensors"
    shown = words_of(passed(cli("squeeze", real, out, *TINY, "--batch-size", 4)).stdout)
    for fact in ("update exact", "classes 3", "layers 2", "images 18", "model bytes", "bound available 5"):
        assert fact in shown
    assert "bound one pass suffices no" in shown
    assert list(out.parent.iterdir()) == [out]
    statistics = ClassStatistics.load(out)
    assert statistics.class_names == ("class0", "class1", "class2")
    assert statistics.counts.tolist() == [6, 6, 6]


def test_unsettled_averages_are_warned_of(cli: Cli, real: Path, tmp_path: Path) -> None:
    words = ("squeeze", real, tmp_path / "s.safetensors", *TINY, "--update", "ema")
    result = cli(*words, "--json")
    document = facts(result)
    assert document["update"] == "ema"
    assert document["bytes"] == 3 * (6 + 8) * 2 * 4
    assert document["model_bytes"] > 0
    assert document["bound"]["one_pass_suffices"] is False
    assert document["bound"]["required"] > document["bound"]["available"]
    assert "use --update exact or --passes" in result.stderr
    needed = result.stderr.strip().split()[-1]
    out = tmp_path / "t.safetensors"
    enough = passed(cli(*words[:2], out, *words[3:], "--views", "crop", "--passes", needed))
    assert "warning" not in enough.stderr
    statistics = ClassStatistics.load(out)
    assert (statistics.views, statistics.passes) == ("crop", int(needed))


def test_teacher_is_trained_first(cli: Cli, real: Path, tmp_path: Path) -> None:
    network = ("--teacher", "small-resnet10:width=2", "--teacher-weights", tmp_path / "t.safetensors")
    words = ("squeeze", real, tmp_path / "s.safetensors", *network)
    training = ("--train-teacher", "--size", 16, "--epochs", 1, "--val", real)
    others = noisy_folder(tmp_path / "val", classes=3, images=1)
    (others / "class1").rename(others / "cat")
    refused = cli(*words, *training[:-1], others)
    one_line_error(refused, "first at class 0 (expected class0, got cat)")
    assert not (tmp_path / "t.safetensors.unfinished").exists()
    result = passed(cli(*words, *training))
    assert "teacher top1" in result.stdout
    again = passed(cli(*words, *training))
    assert "already exists, from the same squeeze" in again.stderr
    assert again.stdout == result.stdout
    one_line_error(
        cli(*words, *training, "--epochs", 2), "a different teacher is already here: field 'epochs' differs"
    )
    # Its file says size and class count, and data of other classes is refused.
    passed(cli(*words))
    two = noisy_folder(tmp_path / "two", classes=2, images=3)
    refused = cli("squeeze", two, tmp_path / "s2.safetensors", *network)
    one_line_error(refused, "differ in their number of classes")
    assert not (tmp_path / "s2.safetensors").exists()
