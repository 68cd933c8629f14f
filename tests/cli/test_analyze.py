from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from tests.lpld_core.networks import noisy_folder

Cli = Callable[..., Result]
MODEL = ("--teacher", "tests.lpld_core.networks:tiny_net", "--teacher-weights", "random", "--size", "8")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("analyze")
    return {
        "real": noisy_folder(root / "real", classes=3, images=12),
        "near": noisy_folder(root / "near", classes=3, images=3),
        "far": noisy_folder(root / "far", classes=3, images=3, seed=4),
    }


def test_the_table_puts_folders_side_by_side(cli: Cli, folders: dict[str, Path]) -> None:
    result = cli("analyze", folders["near"], folders["far"], "--real", folders["real"], *MODEL)
    assert result.exit_code == 0, result.output
    lines = [line for line in result.stdout.splitlines() if "+/-" in line]
    assert [line.strip("│ ").split()[0] for line in lines] == ["near", "far", "real"]
    assert "bandwidth" in result.stdout


def test_json_has_every_measure(cli: Cli, folders: dict[str, Path]) -> None:
    result = cli(
        "analyze", folders["near"], "--real", folders["real"], *MODEL, "--json", "--real-per-class", 5
    )
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    near, real = document["folders"]
    assert (near["images"], real["images"]) == (9, 15)
    assert -1 <= near["similarity"]["mean"] <= near["similarity"]["with_self"] <= 1
    assert near["mmd_squared"] > 0
    assert real["mmd_squared"] is None
    assert document["bandwidth"] > 0


def test_wrong_folders_are_refused(cli: Cli, folders: dict[str, Path], tmp_path: Path) -> None:
    two = noisy_folder(tmp_path / "two", classes=2, images=3)
    result = cli("analyze", two, "--real", folders["real"], *MODEL)
    assert result.exit_code == 1
    assert "differ in their number of classes" in result.stderr
    result = cli("analyze", tmp_path / "nothing", "--real", folders["real"], *MODEL)
    assert result.exit_code == 1
    assert "does not exist" in result.stderr
