"""Numbers that are far too large are told at once, before anything of that length is made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from lpld_core.recover.settings import OptimisedMethod, RdedSettings, RecoverSettings
from lpld_core.relabel.build import wanted_batches
from lpld_core.settings import BuildSettings
from lpld_core.train.settings import TrainSettings
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.exec.job import MAX_PIECES
from tests.cli.build_runs import TEACHER, one_line_error
from tests.lpld_core.image_folders import write_images

Cli = Callable[..., Result]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 99_999_999_999_999}, "epochs is wrong.*>= 1 and <= 2147483648"),
        ({"batch_size": 99_999_999}, "batch size is wrong.*>= 1 and <= 65536"),
        ({"seed": 2**64}, "seed is wrong"),
        ({"epochs": 0}, "epochs is wrong"),
    ],
)
def test_what_no_pool_has_room_for_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        BuildSettings(**settings)


@pytest.mark.parametrize("ratio", [1.0, 40.0, 1e9])
def test_more_batches_than_are_ever_listed_are_refused(ratio: float) -> None:
    with pytest.raises(InvalidArgumentError, match=r"too many label batches.*16777216, got 3000000000"):
        wanted_batches(27, BuildSettings(batch_size=9, epochs=10**9, ratio=ratio))


@pytest.mark.parametrize("method", ["lpld", "sre2l", "rded"])
def test_more_images_than_are_ever_listed_are_refused(method: OptimisedMethod | str) -> None:
    settings: RecoverSettings | RdedSettings
    if method == "rded":
        settings = RdedSettings(ipc=10**11, size=(16, 16))
    else:
        kind: Any = {"statistics_kind": "class" if method == "lpld" else "global", "method": method}
        settings = RecoverSettings(
            **kind, ipc=10**11, iterations=1, learning_rate=0.1, alpha=0.1, roll=0, size=(16, 16)
        )
    with pytest.raises(InvalidArgumentError, match="too many images for one job"):
        settings.groups(3)


def test_a_seed_that_torch_does_not_take_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="seed is wrong"):
        TrainSettings(seed=2**64)


def test_the_command_line_says_so_too(cli: Cli, tmp_path: Path) -> None:
    images, out = write_images(tmp_path / "images"), tmp_path / "pool"
    words = ("build", images, out, *TEACHER, "--batch-size", 9)
    one_line_error(cli(*words, "--epochs", 99_999_999_999_999), "--epochs", code=2)
    one_line_error(cli(*words, "--epochs", MAX_PIECES), "too many label batches", "fewer epochs")
    one_line_error(cli(*words, "--epochs", MAX_PIECES, "--dry-run"), "too many label batches")
    one_line_error(cli(*words, "--seed", 2**64), "--seed", code=2)
    one_line_error(cli("train", out, "--seed", 2**64), "--seed", code=2)
    one_line_error(cli("verify", out, "--seed", -1), "--seed", code=2)
    assert not out.exists()
