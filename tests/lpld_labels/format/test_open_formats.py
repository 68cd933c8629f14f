"""DuckDB and Polars answer questions straight from the Parquet files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pytest

from tests.factories import make_batches, write_pool

BATCHES = make_batches(3, 4, rows=16, classes=20)
EPOCHS = range(3)

CROP_AND_STRENGTH = """
    SELECT epoch, avg(crop_height * crop_width) AS area, avg(mix_strength) AS strength
    FROM '{pool}/views/*.parquet' GROUP BY epoch ORDER BY epoch
"""
TOP_LOGIT = """
    SELECT epoch, avg(list_max(labels)) AS top FROM '{pool}/labels/*.parquet' GROUP BY epoch ORDER BY epoch
"""


def answer_of(query: str, pool: Path) -> list[tuple[Any, ...]]:
    """Ask DuckDB."""
    relation = duckdb.sql(query.format(pool=pool))
    assert relation is not None
    rows: list[tuple[Any, ...]] = relation.fetchall()
    return rows


def expected(question: str) -> list[float]:
    """Answer by hand: the mean over all rows of an epoch."""
    answers = []
    for epoch in EPOCHS:
        values: list[float] = []
        for batch in BATCHES[4 * epoch : 4 * epoch + 4]:
            assert batch.mix is not None
            rows = {
                "area": (batch.crops[:, 2] * batch.crops[:, 3]).tolist(),
                "strength": [batch.mix.strength] * batch.rows,
                "top": batch.labels.max(axis=1).astype(float).tolist(),
            }
            values += rows[question]
        answers.append(float(np.mean(values)))
    return answers


@pytest.mark.parametrize("codec", ["f16", "f16:plain", "f32:plain", "int8"])
def test_crop_area_and_strength_per_epoch(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "pool"
    write_pool(path, BATCHES, codec=codec).close()
    rows = answer_of(CROP_AND_STRENGTH, path)
    views = pl.scan_parquet(f"{path}/views/*.parquet")
    frame = (
        views.group_by("epoch")
        .agg(
            (pl.col("crop_height") * pl.col("crop_width")).mean().alias("area"), pl.col("mix_strength").mean()
        )
        .sort("epoch")
        .collect()
    )
    assert [row[0] for row in rows] == frame["epoch"].to_list() == list(EPOCHS)
    for answer in ([row[1] for row in rows], frame["area"].to_list()):
        assert answer == pytest.approx(expected("area"))
    for answer in ([row[2] for row in rows], frame["mix_strength"].to_list()):
        assert answer == pytest.approx(expected("strength"))


@pytest.mark.parametrize("codec", ["f16:plain", "f32:plain"])
def test_top_logit_per_epoch(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "pool"
    write_pool(path, BATCHES, codec=codec).close()
    rows = answer_of(TOP_LOGIT, path)
    assert [row[1] for row in rows] == pytest.approx(expected("top"))
    frame = (
        pl.scan_parquet(f"{path}/labels/*.parquet")
        .with_columns(pl.col("labels").cast(pl.List(pl.Float32)).list.max().alias("top"))
        .group_by("epoch")
        .agg(pl.col("top").mean())
        .sort("epoch")
        .collect()
    )
    assert frame["top"].to_list() == pytest.approx(expected("top"))
