from pathlib import Path

from tests.cli.build_runs import TINY, Cli, facts, passed
from tests.lpld_core.networks import noisy_folder


def test_folders_are_compared(cli: Cli, tmp_path: Path) -> None:
    real = noisy_folder(tmp_path / "real", classes=3, images=12)
    near = noisy_folder(tmp_path / "near", classes=3, images=3)
    far = noisy_folder(tmp_path / "far", classes=3, images=3, seed=4)
    shown = passed(cli("analyze", near, far, "--real", real, *TINY)).stdout
    rows = [line.strip("│ ").split()[0] for line in shown.splitlines() if "+/-" in line]
    assert rows == ["near", "far", "real"]
    assert "bandwidth" in shown
    found = facts(cli("analyze", near, "--real", real, *TINY, "--json", "--real-per-class", 5))
    ours, theirs = found["folders"]
    assert (ours["images"], theirs["images"]) == (9, 15)
    assert -1 <= ours["similarity"]["mean"] <= ours["similarity"]["with_self"] <= 1
    assert ours["mmd_squared"] > 0
    assert theirs["mmd_squared"] is None
    assert found["bandwidth"] > 0
