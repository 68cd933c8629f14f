import json
import subprocess
import sys
from pathlib import Path

import pytest


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
