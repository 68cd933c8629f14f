import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.trust_peers.__main__ import KINDS, damaged


@pytest.mark.thorough
def test_quick_run(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "trust.json"
    command = [sys.executable, "-m", "benchmarks.trust_peers", "--quick", "--allow-dirty", "--json", str(out)]
    # In a process of its own, since it forks.
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    rows = {row["store"]: row["outcomes"] for row in json.loads(out.read_text())["results"]}
    assert {"lpld-labels, f16", "torch.load", "safetensors"} <= set(rows)
    for name in ("lpld-labels, f16", "lpld-labels, f16:plain"):
        assert rows[name]["wrong labels"] == rows[name]["died"] == 0
        assert rows[name]["refused"] > 10


def test_every_damage_changes_something() -> None:
    data = bytes(range(256)) * 4
    for kind in KINDS:
        changed = [damaged(data, kind, random.Random(number)) for number in range(20)]
        assert sum(found != data for found in changed) > 10
