"""Plots: no text over another, axes that say what they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from lpld_cli.analyze import draw

from lpld_core.analysis import Analysis, FolderAnalysis, Similarity

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text


def _written(figure: Figure) -> Iterator[Text]:
    """Yield the texts of a figure; ticks beyond the ends of their axis are not drawn."""
    for axes in figure.axes:
        yield from (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            yield from (tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)
    for legend in figure.legends:
        yield from legend.get_texts()


def assert_texts_apart(figure: Figure) -> None:
    """Draw and compare the boxes of everything that is written."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    texts = [text for text in _written(figure) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts]
    width, height = canvas.get_width_height()
    for what, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= width + 1, f"{what!r} leaves the picture"
        assert -1 <= box.y0 <= box.y1 <= height + 1, f"{what!r} leaves the picture"
    for (first, box), (second, other) in combinations(boxes, 2):
        assert not box.overlaps(other), f"{first!r} over {second!r}"


def test_diversity() -> None:
    names = ("images_recovered_with_a_long_name", "sre2l_images_of_another_long_name", "real")
    folders = tuple(
        FolderAnalysis(
            name=name,
            images=10,
            similarity=Similarity(mean=0.6, std=0.05, with_self=0.7),
            mmd_squared=None if name == "real" else 0.03,
        )
        for name in names
    )
    figure = draw(Analysis(folders=folders, bandwidth=1.0))
    assert_texts_apart(figure)
    for axes in figure.axes:
        assert "lower" in axes.get_title()
        assert axes.get_xlabel()
