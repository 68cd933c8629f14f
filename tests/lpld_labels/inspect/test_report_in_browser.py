"""The report in headless Chromium: what it shows is what the pool holds."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lpld_labels import PoolReader
from lpld_labels.inspect.page import save_page
from lpld_labels.inspect.report import make_report, report_page
from lpld_labels.loader import pool_loader
from tests.browser import Browser, find_chromium
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_labels.inspect.pages import picture_folder

find_chromium()

CLASSES = 6
EPOCHS = 2
ODD_NAME = 'it\'s a "class" & <b>more'
SCRIPT_NAME = "<img src=x onerror=alert(1)><script>alert(1)"
SHOWN = "document.querySelector('.view:not([hidden])')"


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report 'quoted' & \"more\"")
    images = root / "images"
    table = picture_folder(
        images, [ODD_NAME, SCRIPT_NAME, "\u202ereversed", *(f"class{n}" for n in range(CLASSES - 3))]
    )
    write_pool(
        root / "pool",
        make_batches(EPOCHS, 3, rows=8, classes=CLASSES, images=table),
        header=make_header(CLASSES, 8),
        images=table,
    ).close()
    with PoolReader(root / "pool") as pool:
        report = make_report(pool, images=images)
    save_page(root / "report.html", report_page(report))
    return root


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest.fixture
def opened(chromium: Browser, case: Path) -> Browser:
    chromium.open(case / "report.html")
    return chromium


def cards(browser: Browser) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = browser.evaluate(
        """[...document.querySelectorAll('.view')].map((view) => ({
            key: view.dataset.key.split('/').map(Number),
            slot: Number(view.dataset.slot),
            bars: [...view.querySelectorAll('.bars .mark')].map((bar) => ({
                label: Number(bar.dataset.label),
                probability: Number(bar.dataset.probability),
                stored: Number(bar.dataset.stored),
                share: bar.width.baseVal.value / bar.ownerSVGElement.viewBox.baseVal.width,
            })),
            values: [...view.querySelectorAll('.bars text.end')].map((text) => text.textContent),
        }))"""
    )
    return found


def test_the_page_loads_from_disk_without_a_request_or_a_message(opened: Browser) -> None:
    assert opened.evaluate("location.protocol") == "file:"
    assert opened.complaints() == []
    assert opened.requests() == []
    assert opened.evaluate("document.scripts.length") == 1


def test_views_turn_by_mouse_and_by_keyboard(opened: Browser) -> None:
    place = "document.getElementById('view-place').textContent"
    count = opened.evaluate("document.querySelectorAll('.view').length")
    assert count == 48
    assert opened.evaluate(place) == "1 of 48"
    first = opened.evaluate(f"{SHOWN}.id")
    opened.click("#view-next")
    opened.press("ArrowRight")
    assert opened.evaluate(place) == "3 of 48"
    opened.press("ArrowLeft")
    opened.click("#view-previous")
    assert opened.evaluate(f"{SHOWN}.id") == first
    opened.click("#view-previous")
    assert opened.evaluate(place) == "48 of 48"
    assert opened.evaluate("document.querySelectorAll('.view:not([hidden])').length") == 1


def test_views_are_picked_by_class_image_batch_and_confidence(opened: Browser) -> None:
    def choose(selector: str, value: str) -> None:
        opened.evaluate(
            f"(() => {{ const s = document.querySelector('{selector}'); s.value = '{value}';"
            "s.dispatchEvent(new Event('change')); })()"
        )

    shown = "document.getElementById('view-place').textContent"
    for name in ("class", "image", "batch"):
        value = opened.evaluate(f"document.querySelector('#pick-{name}').options[1].value")
        expected = opened.evaluate(f"document.querySelectorAll('.view[data-{name}=\"{value}\"]').length")
        choose(f"#pick-{name}", value)
        assert opened.evaluate(shown) == f"1 of {expected}"
        assert opened.evaluate(f"{SHOWN}.dataset.{name}") == value
        choose(f"#pick-{name}", "")
    every = opened.evaluate(
        "[...document.querySelectorAll('.view')].map((v) => Number(v.dataset.confidence))"
    )
    for order, best in (("most", max(every)), ("least", min(every))):
        choose("#view-order", order)
        assert opened.evaluate(f"Number({SHOWN}.dataset.confidence)") == best


def test_bars_are_the_readers_numbers(opened: Browser, case: Path) -> None:
    with PoolReader(case / "pool") as pool:
        for card in cards(opened):
            labels = pool.read(tuple(card["key"])).labels[card["slot"]].astype(np.float64)
            shares = np.exp(labels - labels.max()) / np.exp(labels - labels.max()).sum()
            order = np.argsort(-labels, kind="stable")[:5]
            assert [bar["label"] for bar in card["bars"]] == order.tolist()
            for bar, text, label in zip(card["bars"], card["values"], order, strict=True):
                assert bar["probability"] == pytest.approx(shares[label], abs=1e-6)
                assert bar["share"] == pytest.approx(shares[label], abs=1e-4)
                assert bar["stored"] == pytest.approx(labels[label], rel=1e-5)
                assert text == f"{shares[label]:.4f}"


def test_views_are_the_loaders_pixels(opened: Browser, case: Path) -> None:
    expected = {}
    loader = pool_loader(case / "pool", case / "images", sampling="stored", normalise=False)
    for epoch in range(EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            for pixels, key in zip(batch.images, batch.keys.tolist(), strict=True):
                expected[tuple(key)] = pixels.permute(1, 2, 0).numpy().astype(np.float64)
    shown = opened.evaluate(
        """[...document.querySelectorAll('.view')].map((view) => [view.dataset.key, view.dataset.slot,
            view.querySelector('.picture.seen image').getAttribute('href').split(',')[1]])"""
    )
    assert len(shown) == 48
    for name, slot, data in shown:
        epoch, number = name.split("/")
        with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
            error = np.abs(np.asarray(picture, np.float64) - expected[int(epoch), int(number), int(slot)])
        assert error.mean() < 2.5
        assert np.quantile(error, 0.99) < 16
    others = list(expected.values())
    assert np.abs(others[0] - others[1]).mean() > 10, "views are so alike that any of them would pass"


def test_names_from_outside_show_as_text(opened: Browser, case: Path) -> None:
    text = opened.evaluate("document.body.textContent")
    options = opened.evaluate(
        "[...document.querySelectorAll('#pick-class option')].map((o) => o.textContent)"
    )
    assert SCRIPT_NAME in options
    assert SCRIPT_NAME in text
    assert ODD_NAME in text
    assert str(case / "pool") in opened.evaluate("document.querySelector('h1 + p').textContent")
    assert opened.evaluate("document.title") == "pool: soft labels of 18 images in 6 classes"
    assert opened.evaluate("document.querySelectorAll('b, img').length") == 0
    assert not [e for e in opened.events if e.get("method") == "Page.javascriptDialogOpening"]


def test_nothing_but_the_pages_own_script_can_run(opened: Browser) -> None:
    ran = opened.evaluate(
        """new Promise((resolve) => {
            addEventListener('securitypolicyviolation', () => resolve(window.ran ?? 'refused'));
            const script = document.createElement('script');
            script.textContent = 'window.ran = true';
            document.body.append(script);
            setTimeout(() => resolve(window.ran ?? 'nothing'), 2000);
        })"""
    )
    assert ran == "refused"


def test_light_dark_phone_and_paper(opened: Browser) -> None:
    def colours() -> tuple[str, str, str]:
        found = opened.evaluate(
            "[getComputedStyle(document.documentElement).backgroundColor,"
            "getComputedStyle(document.documentElement).color,"
            "getComputedStyle(document.querySelector('.chart .m0')).fill]"
        )
        return (found[0], found[1], found[2])

    light = colours()
    opened.resize(1200, 900, dark=True)
    dark = colours()
    assert len({light[0], dark[0]}) == len({light[2], dark[2]}) == 2
    assert dark[1] != light[1]
    opened.resize(400, 800)
    assert opened.evaluate("document.documentElement.scrollWidth") <= 400
    sizes = opened.evaluate(
        """[...document.querySelectorAll('svg.chart text')].filter((t) => t.checkVisibility()).map((text) =>
            parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"""
    )
    assert min(sizes) >= 9
    opened.resize(800, 1100, dark=True, media="print")
    assert colours()[0] == "rgb(255, 255, 255)"
    assert opened.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"
    assert opened.pdf().startswith(b"%PDF")


@pytest.mark.parametrize(("batches", "classes"), [(0, 3), (1, 10450)])
def test_unusual_pools_are_quiet(chromium: Browser, tmp_path: Path, batches: int, classes: int) -> None:
    images = make_images(5, 3)
    made = make_batches(1, batches, classes=classes, images=images)
    pool = write_pool(tmp_path / "pool", made, header=make_header(classes), images=images)
    (tmp_path / "page.html").write_bytes(report_page(make_report(pool)))
    chromium.open(tmp_path / "page.html", width=400)
    assert chromium.complaints() == []
    assert chromium.requests() == []
    assert chromium.evaluate("document.documentElement.scrollWidth") <= 400
