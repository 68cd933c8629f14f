import time
from contextlib import closing

import pytest

from lpld_labels.render.images import map_ahead


@pytest.mark.parametrize("workers", [1, 3])
def test_results_come_in_order(workers: int) -> None:
    def slow_first(item: int) -> int:
        time.sleep(0.02 if item == 0 else 0)
        return item * item

    assert list(map_ahead(slow_first, range(9), workers=workers, ahead=4)) == [i * i for i in range(9)]


def test_work_runs_ahead_but_not_far() -> None:
    begun: list[int] = []

    def note(item: int) -> int:
        begun.append(item)
        return item

    with closing(map_ahead(note, range(100), ahead=2)) as results:
        for expected in range(5):
            assert next(results) == expected
            assert len(begun) <= expected + 3
        # However busy the machine is, two more are begun in the end, and with nobody asking no third.
        while len(begun) < 7:
            time.sleep(0.001)
        time.sleep(0.05)
        assert len(begun) == 7


def test_errors_made_ahead_are_raised_in_their_turn() -> None:
    def fail(item: int) -> int:
        if item == 2:
            raise KeyError(item)
        return item

    results = map_ahead(fail, range(5), ahead=3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(KeyError):
        next(results)
