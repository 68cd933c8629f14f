import math
from pathlib import Path

import pytest

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.inspect.page import render_page, save_page
from lpld_labels.inspect.report import Bar, Chart, bars, histogram, scale
from lpld_labels.inspect.text import human_bytes, percent, short_number, shortened
from tests.lpld_labels.inspect.pages import HOSTILE, read_page


def page_of(*charts: Chart, text: str = "t") -> bytes:
    folders = [(text, [("data:,", text)])]
    return render_page(
        Path(__file__).with_name("charts.html"),
        title=text,
        lead=text,
        charts=charts,
        sheets=[(text, folders)],
        says=text,
        settings=[(text, text)],
    )


def test_bars_are_as_long_as_their_values() -> None:
    chart = bars("t", "s", [Bar(label=str(n), value=n, text=str(n)) for n in (1, 2, 4)])
    page = read_page(page_of(chart))
    one, two, four = (float(a["width"] or 0) for name, a in page.tags if name == "rect")
    assert two == pytest.approx(2 * one, rel=0.01)
    assert four == pytest.approx(4 * one, rel=0.01)
    assert chart.rows == [("1", "1"), ("2", "2"), ("4", "4")]


def test_histograms_count_and_name_their_columns() -> None:
    chart = histogram("t", "s", [0, 1, 2, 3], [2, 0, 4], unit="u", counted="c", whole=True)
    assert chart.marks == 2
    assert chart.rows == [("0", "2"), ("1", "0"), ("2", "4")]
    wide = histogram("t", "s", [0, 5, 10], [1, 1], unit="u", counted="c", whole=True)
    assert [row[0] for row in wide.rows] == ["0 to 4", "5 to 9"]
    share = histogram("t", "s", [0, 0.5, 1], [1, 1], unit="u", counted="c")
    assert [row[0] for row in share.rows] == ["0 to 0.5", "0.5 to 1"]


def test_nothing_to_draw_is_said_and_too_large_a_page_refused(tmp_path: Path) -> None:
    for chart in (bars("t", "s", []), histogram("t", "s", [0, 1], [0], unit="u", counted="c")):
        assert chart.marks == 0
        assert "nothing to draw" in read_page(page_of(chart)).text
    with pytest.raises(InvalidArgumentError, match="too large"):
        save_page(tmp_path / "page.html", b"x" * 5_000_001)
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("values", [[], [0], [5], [1e-9, 1e12], [-3, 3], [0.1, 0.1]])
def test_scales_have_ticks_within_them(values: list[float]) -> None:
    found = scale(values, 0, 100)
    ticks = found.ticks()
    assert 1 <= len(ticks) <= 8
    assert all(0 <= found(tick) <= 100 for tick in ticks)
    assert ticks == sorted(set(ticks))


def test_text_is_escaped_wherever_it_goes() -> None:
    charts = [
        bars(HOSTILE, HOSTILE, [Bar(label=HOSTILE, value=1, text=HOSTILE, more=(HOSTILE,))]),
        histogram(HOSTILE, HOSTILE, [0, 1], [1], unit=HOSTILE, counted=HOSTILE),
    ]
    found = read_page(page_of(*charts, text=HOSTILE))
    assert found.text.count("<script>alert(1)</script>") > 15
    assert "a\ufffdb\ufffdc" in read_page(page_of(text="a\x00b\ud800c")).text
    assert len(shortened("x" * 10**6)) < 200


def test_numbers_as_people_read_them() -> None:
    assert [human_bytes(size) for size in (1710, 3, 2.54e12)] == ["1.71 kB", "3 B", "2.54 TB"]
    numbers = [short_number(number) for number in (12345.0, 0.123456, math.nan)]
    assert numbers == ["12,345", "0.1235", "not a number"]
    shares = " ".join(percent(share) for share in (0, 0.5, 1, 0.99999, 1e-6))
    assert shares == "0.0 % 50.0 % 100.0 % > 99.9 % < 0.1 %"
