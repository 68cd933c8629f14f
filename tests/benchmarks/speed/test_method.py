from tests.benchmarks.conftest import QuickRun


def test_quick_run(quick_run: QuickRun) -> None:
    results = quick_run("benchmarks.speed.method")
    assert [entry["classes"] for entry in results["statistics"]] == [20, 50]
    assert all(entry["times_faster_than_present_classes"] > 0 for entry in results["statistics"])
    assert [entry["class_group"] for entry in results["recovery"]] == [1, 2]
