from dataclasses import dataclass, replace
from pathlib import Path

import lpld_labels as lpld
from lpld_labels.inspect.shown import fact_rows
from lpld_labels.results import Result
from tests.factories import make_batches, make_header, make_images, write_pool
from tests.lpld_labels.loader.loader_pools import build, write_images

EVIL = "<script>alert(1)</script>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Made(Result):
    """A result."""

    name: str
    bytes: int
    shares: tuple[float, ...] = ()
    left_out: str | None = None


def test_a_result_shows_its_facts() -> None:
    made = Made(name="pool", bytes=12_345, shares=(0.5, 0.25))
    assert made.as_json() == {"name": "pool", "bytes": 12_345, "shares": [0.5, 0.25], "left_out": None}
    assert repr(made) == "Made\n  name: pool\n  bytes: 12.3 kB\n  shares: 0.5\n    0.25"
    assert "12.3 kB" in made._repr_html_()


def test_names_are_escaped_and_secrets_are_left_out(tmp_path: Path) -> None:
    page = Made(name=f"https://user:secret@host/{EVIL}", bytes=1)._repr_html_()
    assert "<script" not in page
    assert "secret" not in page
    teacher = replace(make_header().teachers[0], name=EVIL)
    images = replace(make_images(), paths=[f"{EVIL.replace('/', '')}/{n:03d}.png" for n in range(50)])
    with write_pool(
        tmp_path / "pool", make_batches(), header=make_header(teachers=(teacher,)), images=images
    ) as pool:
        page = pool._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_pool_shows_contents_and_size(tmp_path: Path) -> None:
    with write_pool(tmp_path / "pool", make_batches(), codec="int8") as pool:
        assert repr(pool) == f"PoolReader({str(tmp_path / 'pool')!r})"
        page = pool._repr_html_()
    for text in ("10 classes", "int8", "epochs", "batches", "crop coordinates", "in all"):
        assert text in page
    assert "<img" not in page
    assert "int8" in repr(lpld.summary(tmp_path / "pool"))


def test_a_pool_shows_views_where_its_images_are_known(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "images")
    build(tmp_path / "pool", folder).close()
    lpld.copy(tmp_path / "pool", tmp_path / "packed", images=folder)
    for name, image_folder in (("pool", folder), ("packed", None)):
        with lpld.PoolReader(tmp_path / name, image_folder=image_folder) as pool:
            assert pool._repr_html_().count('<img src="data:image/jpeg;base64,') == 8
    with lpld.PoolReader(tmp_path / "pool", image_folder=tmp_path / "elsewhere") as pool:
        page = pool._repr_html_()
    assert "no pictures" in page
    assert "elsewhere" in page


def test_long_lists_are_cut() -> None:
    rows = dict(fact_rows({"found": [str(n) for n in range(12)], "none": [], "deep": {"a_b": True}}))
    assert rows["found"].endswith("9\nand 2 more (see --json)")
    assert rows["deep a b"] == "yes"
    assert "none" not in rows
