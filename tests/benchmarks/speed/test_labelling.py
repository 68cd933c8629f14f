from tests.benchmarks.conftest import QuickRun


def test_quick_run(quick_run: QuickRun) -> None:
    results = quick_run("benchmarks.speed.labelling", "--threads", "1")
    assert results["labelling"]["images_per_build"] == 96
    assert results["labelling"]["share_of_teacher"]["median"] > 0
    assert results["memory"]["epochs"] == 8
    assert results["apply"]["speed_up"] > 0
