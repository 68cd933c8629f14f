"""The scale-out benchmark: a tiny run of its parts, and what its calculation says."""

from pathlib import Path

import pytest

from benchmarks.scale_out.calculation import Constants, at_scale
from benchmarks.scale_out.constants import publishing, store
from benchmarks.scale_out.engines import efficiency


@pytest.mark.thorough
def test_engines_are_compared(tmp_path: Path) -> None:
    assert efficiency(tmp_path, 6, rounds=1)["median_ray_over_local"] > 0


def test_constants_are_measured(tmp_path: Path) -> None:
    assert store(tmp_path, 1)["proof_gb_per_second"] > 0
    assert set(publishing(tmp_path, 1, 2)["commit_seconds"]) == {"1", "2"}


def test_the_slowest_part_is_named() -> None:
    fast = {
        "task_seconds": 0.001,
        "seal_gb_per_second": 0.5,
        "proof_gb_per_second": 1.0,
        "driver_bytes_per_batch": 100.0,
    }
    found = at_scale(Constants(**fast, commit_seconds_per_shard=0.5))
    assert found["views"] == 62_700_000
    assert found["labelling_hours"] == pytest.approx(62_700_000 / 64_000 / 3600, abs=1e-3)
    assert found["bottleneck"] == "commit"
    slow = fast | {"task_seconds": 10.0}
    assert at_scale(Constants(**slow, commit_seconds_per_shard=0.01))["bottleneck"] == "driver"
