"""Nothing is published that no reader would take."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lpld_labels import PoolReader
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_JSON_BYTES
from lpld_labels.format.manifest import LineageStep, PoolHeader, Teacher
from lpld_labels.format.strict_json import to_json
from lpld_labels.pool.writer import PoolWriter
from tests.factories import make_batches, make_header, make_images

GREY = (0.5, 0.5, 0.5)


def with_teacher(**facts: Any) -> PoolHeader:
    return make_header(teachers=(Teacher(**{"name": "a", "mean": GREY, "std": GREY, **facts}),))


def with_views(**facts: Any) -> PoolHeader:
    header = make_header()
    return replace(header, augmentation=replace(header.augmentation, **facts))


@pytest.mark.parametrize(
    ("header", "field"),
    [
        (with_teacher(std=(0.0, 0.0, 0.0)), r"teachers\[0\]\.std"),
        (with_teacher(std=None), r"teachers\[0\]\.std"),
        (with_teacher(mean=(math.nan, 0.0, 0.0)), r"teachers\[0\]\.mean\[0\]"),
        (with_teacher(mean=(0.5, 0.5)), r"teachers\[0\]\.mean"),
        (with_teacher(name="a\udcff"), r"teachers\[0\]\.name"),
        (with_teacher(weights_digest="unknown"), r"teachers\[0\]\.weights_digest"),
        (with_views(output_height=99_999_999), r"augmentation\.output_height"),
        (with_views(mix_alpha=math.inf), r"augmentation\.mix_alpha"),
        (make_header(seed=2**64), "seed"),
        (make_header(batch_size=1 << 20), "batch_size"),
        (make_header(classes=1 << 25), "classes"),
    ],
)
def test_a_header_that_cannot_be_read_is_refused_before_any_work(
    tmp_path: Path, header: PoolHeader, field: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"field '{field}'"):
        PoolWriter(tmp_path / "pool", header=header, images=make_images())
    assert not (tmp_path / "pool").exists()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (math.nan, r"field 'lineage\[0\]\.parameters\.value' cannot be written as JSON"),
        ("a\udcff", r"expected text .*, got 'a\\udcff'"),
        (10**30, "is out of range"),
        ("x" * MAX_JSON_BYTES, "too large"),
    ],
    ids=["nan", "no text", "integer", "length"],
)
def test_a_manifest_that_cannot_be_read_is_not_published(tmp_path: Path, value: object, said: str) -> None:
    batches, path = make_batches(2, 3), tmp_path / "pool"
    with PoolWriter(path, header=make_header(), images=make_images()) as writer:
        writer.extend(batches)
        with pytest.raises(InvalidArgumentError, match=said):
            writer.commit(lineage=(LineageStep(operation="test", parameters={"value": value}),))
        assert not (path / "pool.json").exists()
    with PoolWriter(path, header=make_header(), images=make_images()) as writer:
        assert all(batch.key in writer for batch in batches), "what was done is kept"
        writer.commit()
    with PoolReader(path) as pool:
        assert len(pool) == 6
    assert [one.name for one in tmp_path.iterdir()] == ["pool"]


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"field 'a\[1\]\.b' .*finite number, got inf"):
        to_json({"a": [1.0, {"b": math.inf}]})
    with pytest.raises(InvalidArgumentError, match=r"field 'a' .*text .*, got '\\udcff'"):
        to_json({"a": {"\udcff": 1}})
