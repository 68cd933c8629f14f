from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lpld_labels import LabelBatch, PoolReader, PoolWriter
from lpld_labels.format.manifest import LineageStep
from lpld_labels.inspect.compare import Relation, compare_pools, pool_names
from tests.factories import make_batch, make_batches, make_header, make_images, write_pool


def relation(readers: Sequence[PoolReader]) -> Relation:
    (found,) = compare_pools(readers).relations
    return found


def with_lineage(path: Path, batches: Sequence[LabelBatch], *steps: LineageStep) -> PoolReader:
    with PoolWriter(path, header=make_header(), images=make_images()) as writer:
        writer.extend(batches)
        writer.commit(lineage=steps)
    return PoolReader(path)


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        (slice(0, 4), "part and whole hold the same labels, bit for bit."),
        (slice(1, 3), "part (2 batches) and whole (4) share 2, 2 of them identical bit for bit."),
    ],
)
def test_batches_in_common_are_counted_without_lineage(tmp_path: Path, kept: slice, text: str) -> None:
    batches = make_batches(2, 2)
    whole, part = write_pool(tmp_path / "whole", batches), write_pool(tmp_path / "part", batches[kept])
    found = relation([part, whole])
    assert (found.first, found.second, found.steps, found.text) == ("part", "whole", (), text)
    assert found.shared == found.identical == len(batches[kept])


def test_lineage_is_followed_over_several_steps(tmp_path: Path) -> None:
    batches = make_batches(2, 2)
    first = with_lineage(tmp_path / "first", batches)
    digest, how = first.manifest.content_digest, {"codec": "f16", "codec_before": "f16"}
    prune = LineageStep(operation="prune", parent_digest=digest, parameters={"ratio": 2.0})
    second = with_lineage(tmp_path / "second", batches[:2], prune)
    digest = second.manifest.content_digest
    encode = LineageStep(operation="encode", parent_digest=digest, parameters=how)
    third = with_lineage(tmp_path / "third", batches[:1], prune, encode)
    relations = compare_pools([third, second, first]).relations
    steps = {(r.first, r.second): r.steps for r in relations}
    assert steps == {
        ("second", "third"): ("encode",),
        ("first", "third"): ("prune", "encode"),
        ("first", "second"): ("prune",),
    }
    (far,) = (r for r in relations if len(r.steps) == 2)
    said = "third came from first: pruned 2x, then encoded from f16 to f16 (its lineage says so). "
    assert far.text == f"{said}first (4 batches) and third (1) share 1, 1 of them identical bit for bit."


def test_other_views_and_other_labels_are_not_identical(tmp_path: Path) -> None:
    batches = make_batches(1, 2)
    one, lossy = write_pool(tmp_path / "one", batches), write_pool(tmp_path / "lossy", batches, codec="int4")
    for name, others, shared in (
        ("moved", [replace(batch, flips=~batch.flips) for batch in batches], 2),
        ("relabelled", [replace(batch, labels=-batch.labels) for batch in batches], 2),
        ("apart", [make_batch(5, 5)], 0),
        ("classes", make_batches(1, 2, classes=12), 2),
    ):
        pool = write_pool(tmp_path / name, others)
        found = relation([one, pool])
        assert (found.shared, found.identical) == (shared, 0)
        if name == "apart":
            assert found.text == "one (2 batches) and apart (1) have no batch in common."
        if name != "relabelled":
            assert compare_pools([lossy, pool]).pools[0].fidelity is None


def test_fidelity_is_measured_by_the_lossless_relative(tmp_path: Path) -> None:
    batches = make_batches(2, 2, classes=40)
    lossy = write_pool(tmp_path / "lossy", batches, codec="int4")
    comparison = compare_pools([lossy, write_pool(tmp_path / "exact", batches)])
    kept, none = comparison.pools[0], comparison.pools[1]
    assert none.fidelity is None
    assert kept.fidelity is not None
    assert kept.measured_by == "exact"
    assert 0.9 < kept.fidelity.kept[4.0] < 1
    assert comparison.differing["codec"] == ["int4", "f16 (layout compact)"]
    assert "seed" not in comparison.differing


@pytest.mark.parametrize("codec", ["topk:5", "int4"])
def test_the_parent_measures_what_its_codec_kept(tmp_path: Path, codec: str) -> None:
    batches = make_batches(2, 2, classes=40)
    other = [replace(batch, labels=batch.labels[:, ::-1].copy()) for batch in batches]
    decoy = write_pool(tmp_path / "decoy", other)
    parent = write_pool(tmp_path / "parent", batches)
    step = LineageStep(operation="encode", parent_digest=parent.manifest.content_digest)
    lossy = write_pool(tmp_path / "lossy", batches, codec=codec, header=make_header(40, lineage=(step,)))
    kept = compare_pools([decoy, lossy, parent]).pools[1]
    assert kept.measured_by == "parent"
    assert kept.fidelity is not None
    assert kept.fidelity.top1 > 0.9


def test_names_tell_pools_apart() -> None:
    assert pool_names(["x/a", "y/b/"]) == ["a", "b"]
    assert pool_names(["x/a", "y/a"]) == ["x/a", "y/a"]
    assert pool_names(["x/a", "x/a"]) == ["x/a (1)", "x/a (2)"]
