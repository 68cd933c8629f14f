import pytest

from tests.benchmarks.conftest import QuickRun


@pytest.mark.thorough
def test_quick_run(quick_run: QuickRun) -> None:
    results = quick_run("benchmarks.speed.importing")
    assert results["batches"] == 6
    assert results["import_jobs_1"]["mb_per_core_s"] > 0
    # Memory of a process of its own: four times as many batches may not take four times as much.
    assert results["long"]["peak_memory_mb"] < 1.3 * results["import_jobs_1"]["peak_memory_mb"]
    assert results["bytes_ratio"] < 1
