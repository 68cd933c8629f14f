from benchmarks.speed.labelling import MemoryUse
from tests.benchmarks.conftest import QuickRun


def test_quick_run(quick_run: QuickRun) -> None:
    results = quick_run("benchmarks.speed.labelling", "--threads", "1")
    assert results["labelling"]["images_per_build"] == 96
    assert results["labelling"]["share_of_teacher"]["median"] > 0
    assert results["memory"]["epochs"] == 8
    assert results["apply"]["speed_up"] > 0


def test_growth_compares_the_last_quarter_with_the_second() -> None:
    assert MemoryUse(megabytes=[9.0, 9, 5, 5, 6, 6, 7, 7]).growth == 2
    assert MemoryUse(megabytes=[1.0, 5, 5, 5]).growth == 0
