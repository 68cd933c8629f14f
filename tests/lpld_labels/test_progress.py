import pytest

from lpld_labels.progress import Progress, progress_of


def test_a_function_is_called_and_progress_kept() -> None:
    calls: list[tuple[int, int]] = []
    with progress_of(lambda done, total: calls.append((done, total))).stage("work") as progress:
        progress(1, 2)
        progress.note("loss 1")
    assert calls == [(1, 2)]
    assert progress_of(found := Progress()) is found


@pytest.mark.parametrize("nothing", [None, False])
def test_nothing_is_shown_unless_asked_for(nothing: bool | None, capfd: pytest.CaptureFixture[str]) -> None:
    with progress_of(nothing).stage("work") as progress:
        progress(1, 2)
    assert capfd.readouterr() == ("", "")


def test_a_bar_for_each_stage(capfd: pytest.CaptureFixture[str]) -> None:
    shown = progress_of(True)
    for what in ("reading images", "labelling"):
        with shown.stage(what) as progress:
            progress(3, 3)
            progress.note("loss 1.5")
    out, err = capfd.readouterr()
    assert out == ""
    assert [line.split()[0] for line in err.splitlines() if line.strip()] == ["reading", "labelling"]
    assert "3/3" in err
    assert "loss 1.5" in err
