from tests.benchmarks.conftest import QuickRun


def test_quick_run(quick_run: QuickRun) -> None:
    results = quick_run("benchmarks.speed.augmenting")
    assert [result["image_size"] for result in results] == [224, 64]
    for result in results:
        assert result["images_per_batch"] == 12
        assert result["speed_up"] > 0
        assert {"PIL from files", "PIL from decoded images", "replay"} <= set(result["ways"])
