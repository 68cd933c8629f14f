from pathlib import Path

import pytest

from benchmarks.scale_out.constants import publishing, store
from benchmarks.scale_out.engines import efficiency


@pytest.mark.thorough
def test_engines_are_compared(tmp_path: Path) -> None:
    assert efficiency(tmp_path, 6, rounds=1)["median_ray_over_local"] > 0


def test_constants_are_measured(tmp_path: Path) -> None:
    assert store(tmp_path, 1)["proof_gb_per_second"] > 0
    assert set(publishing(tmp_path, 1, 2)["commit_seconds"]) == {"1", "2"}
