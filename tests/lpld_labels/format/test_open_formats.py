"""DuckDB and Polars answer questions straight from the Parquet files."""

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from tests.factories import make_batches, write_pool

EPOCHS = [make_batches(3, 4, rows=16, classes=20)[4 * epoch : 4 * epoch + 4] for epoch in range(3)]
VIEWS = """
    SELECT epoch, avg(crop_height * crop_width), avg(mix_strength)
    FROM '{}/views/*.parquet' GROUP BY epoch ORDER BY epoch
"""
TOP_LOGIT = "SELECT epoch, avg(list_max(labels)) FROM '{}/labels/*.parquet' GROUP BY epoch ORDER BY epoch"


def answer(query: str, pool: Path) -> list[tuple[Any, ...]]:
    relation = duckdb.sql(query.format(pool))
    assert relation is not None
    rows: list[tuple[Any, ...]] = relation.fetchall()
    return rows


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32:plain", "int8"])
def test_means_of_crops_strengths_and_labels_per_epoch(tmp_path: Path, codec: str) -> None:
    write_pool(tmp_path, [batch for epoch in EPOCHS for batch in epoch], codec=codec).close()
    areas = [np.mean([b.crops[:, 2].astype(float) * b.crops[:, 3] for b in epoch]) for epoch in EPOCHS]
    strengths = [np.mean([b.mix.strength for b in epoch if b.mix is not None]) for epoch in EPOCHS]
    rows = answer(VIEWS, tmp_path)
    assert [row[0] for row in rows] == [0, 1, 2]
    area = (pl.col("crop_height") * pl.col("crop_width")).mean().alias("area")
    views = pl.scan_parquet(f"{tmp_path}/views/*.parquet").group_by("epoch")
    frame = views.agg(area, pl.col("mix_strength").mean()).sort("epoch").collect()
    for found in ([row[1] for row in rows], frame["area"].to_list()):
        assert found == pytest.approx(areas)
    for found in ([row[2] for row in rows], frame["mix_strength"].to_list()):
        assert found == pytest.approx(strengths)
    if not codec.endswith("plain"):
        return
    tops = [np.mean([b.labels.max(axis=1).astype(float) for b in epoch]) for epoch in EPOCHS]
    top = pl.col("labels").cast(pl.List(pl.Float32)).list.max().mean().alias("top")
    labels = pl.scan_parquet(f"{tmp_path}/labels/*.parquet").group_by("epoch").agg(top).sort("epoch")
    assert [row[1] for row in answer(TOP_LOGIT, tmp_path)] == pytest.approx(tops)
    assert labels.collect()["top"].to_list() == pytest.approx(tops)
