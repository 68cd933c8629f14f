"""Merging pools: everything is in, bit for bit, and what does not belong together is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.errors import PoolConflictError
from lpld_labels.inspect.check import check_pool
from lpld_labels.transforms.copy import merge_pools
from tests.factories import assert_same_views, make_batches, make_header, make_images, write_pool

BATCHES = make_batches(3, 4)


@pytest.fixture
def parts(tmp_path: Path) -> list[PoolReader]:
    return [write_pool(tmp_path / f"part{number}", BATCHES[number::3]) for number in range(3)]


def test_all_batches_are_in_as_if_written_at_once(tmp_path: Path, parts: list[PoolReader]) -> None:
    done: list[tuple[int, int]] = []
    manifest = merge_pools(parts, tmp_path / "out", progress=lambda d, t: done.append((d, t)))
    assert done == [(number, 12) for number in range(1, 13)]
    assert check_pool(tmp_path / "out").whole
    with write_pool(tmp_path / "direct", BATCHES) as direct:
        assert manifest.content_digest == direct.manifest.content_digest
    with PoolReader(tmp_path / "out") as merged:
        for batch in BATCHES:
            found = merged.read(batch.key)
            assert_same_views(found, batch)
            np.testing.assert_array_equal(found.labels, batch.labels)
    (step,) = manifest.header.lineage
    assert step.operation == "merge"
    digests = [part.manifest.content_digest for part in parts]
    assert [entry["content_digest"] for entry in step.parameters["pools"]] == digests


def test_once_more_it_finds_its_own_pool(tmp_path: Path, parts: list[PoolReader]) -> None:
    first = merge_pools(parts, tmp_path / "out")
    assert merge_pools(parts, tmp_path / "out") == first
    with pytest.raises(PoolConflictError, match="already here"):
        merge_pools(parts[:2], tmp_path / "out")


def test_pools_with_a_batch_in_common(tmp_path: Path, parts: list[PoolReader]) -> None:
    with pytest.raises(PoolConflictError, match=r"two pools hold epoch 0 batch 0.*part0.*part0"):
        merge_pools([*parts, parts[0]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("what", "field"),
    [("seed", "seed"), ("images", "images_digest"), ("codec", "codec.name"), ("teachers", "teachers")],
)
def test_pools_that_differ(tmp_path: Path, parts: list[PoolReader], what: str, field: str) -> None:
    header = make_header(seed=1) if what == "seed" else make_header()
    if what == "teachers":
        header = make_header(teachers=())
    other = write_pool(
        tmp_path / "other",
        make_batches(1, 1)[:0],
        header=header,
        images=make_images(49) if what == "images" else None,
        codec="int8" if what == "codec" else "f16",
    )
    with pytest.raises(PoolConflictError, match=rf"cannot be merged: field '{field}' differs.*same images"):
        merge_pools([parts[0], other], tmp_path / "out")


def test_on_the_command_line(tmp_path: Path, parts: list[PoolReader], cli: Callable[..., Result]) -> None:
    locations = [part.location for part in parts]
    result = cli("copy", *locations, tmp_path / "out", "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert (facts["batches"], len(facts["pools"])) == (12, 3)
    table = cli("copy", *locations, tmp_path / "out")
    assert facts["content_digest"] in table.stdout
    overlap = cli("copy", locations[0], locations[0], tmp_path / "twice")
    assert (overlap.exit_code, overlap.stderr.count("\n")) == (1, 1)
    assert "two pools hold" in overlap.stderr
