from pathlib import Path

import pytest

from benchmarks.rate_distortion.chart import draw_chart
from benchmarks.rate_distortion.measure import MILLION, ROWS, RateDistortion
from benchmarks.rate_distortion.speed import decode_against_replay, many_classes
from tests.benchmarks.conftest import assert_drawn
from tests.lpld_labels.transforms.test_plan import labelled_pool


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> RateDistortion:
    pool = labelled_pool(tmp_path_factory.mktemp("curve") / "pool", classes=60, batches=20)
    return RateDistortion.measure(pool, quick=True)


def test_sizes_are_listed_apart_and_add_up(curve: RateDistortion) -> None:
    assert curve.rows_fitted + curve.rows_measured < 20 * 64
    for point in curve.points:
        assert set(point.sizes) == set(ROWS)
        for size in point.sizes.values():
            assert size.total == pytest.approx(size.payload + size.tables + size.container)
        has_tables = point.sizes[MILLION].tables > 0
        assert has_tables == point.family.startswith("klt")
        assert point.encode_rate > 0
    document = curve.as_json()
    assert {row["codec"] for row in document["settings"]} >= {"f16", "int8", "topk:10:16"}
    assert document["entropy_at_step_1"]["coded_bytes_per_row"] > 0


def test_the_other_parts_of_a_run(curve: RateDistortion, tmp_path: Path) -> None:
    draw_chart(tmp_path / "chart.png", curve)
    assert_drawn(tmp_path / "chart.png")
    found = decode_against_replay(curve, None, runs=1)
    assert found["images_replayed"] > 0
    assert found["share"] > 0
    many = many_classes(classes=700, rows=1152)
    assert many["kept"]["20"] > 0.95
    assert many["smaller_than_fp16"] > 4
