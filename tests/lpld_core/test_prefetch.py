from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest

from lpld_core.prefetch import WorkBehind, map_ahead


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


def test_everything_handed_over_is_consumed() -> None:
    seen: list[int] = []

    def slowly(item: int) -> None:
        time.sleep(0.001)
        seen.append(item)

    with WorkBehind(slowly, depth=2) as behind:
        for item in range(20):
            behind.put(item)
    assert seen == list(range(20))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, ValueError])
def test_interruptions_do_not_lose_what_was_handed_over(interruption: type[BaseException]) -> None:
    seen: list[int] = []

    def work() -> None:
        with WorkBehind(seen.append, depth=9) as behind:
            for item in range(5):
                behind.put(item)
            raise interruption

    with pytest.raises(interruption):
        work()
    assert seen == list(range(5))


def test_errors_behind_reach_the_caller_and_end_consumption() -> None:
    seen: list[int] = []
    failed = threading.Event()

    def fail_at_one(item: int) -> None:
        if item == 1:
            failed.set()
            raise OSError("disk is full")
        seen.append(item)

    def work() -> None:
        with WorkBehind(fail_at_one, depth=1) as behind:
            for item in range(100):
                behind.put(item)
                if item == 1:
                    failed.wait(5)

    with pytest.raises(OSError, match="disk is full"):
        work()
    assert seen == [0]


def test_an_error_on_the_last_item_is_raised_on_leaving() -> None:
    def fail(item: int) -> None:
        raise OSError(item)

    def work() -> None:
        with WorkBehind(fail) as behind:
            behind.put(1)

    with pytest.raises(OSError, match="1"):
        work()
