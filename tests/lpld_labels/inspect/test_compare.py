"""Pools side by side: which came from which is found by lineage, and without it by the batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lpld_labels import LabelBatch, LineageStep, PoolReader, PoolWriter
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.inspect.compare import Relation, compare_pools, comparison_page, parent_of, pool_names
from tests.factories import make_batch, make_batches, make_header, make_images, write_pool
from tests.lpld_labels.inspect.pages import HOSTILE, read_page


def relation(readers: Sequence[PoolReader]) -> Relation:
    (found,) = compare_pools(readers).relations
    return found


def with_lineage(path: Path, batches: Sequence[LabelBatch], *steps: LineageStep) -> PoolReader:
    with PoolWriter(path, header=make_header(), images=make_images()) as writer:
        writer.extend(batches)
        writer.commit(lineage=steps)
    return PoolReader(path)


def test_the_same_labels_are_recognised(tmp_path: Path) -> None:
    pools = [write_pool(tmp_path / name, make_batches(2, 2)) for name in ("a", "b")]
    found = relation(pools)
    assert (found.kind, found.shared, found.identical) == ("same", 4, 4)
    assert found.text == "a and b hold the same labels, bit for bit."


def test_a_pruning_is_found_without_lineage(tmp_path: Path) -> None:
    batches = make_batches(2, 2)
    whole, part = write_pool(tmp_path / "whole", batches), write_pool(tmp_path / "part", batches[1:3])
    for pools in ([whole, part], [part, whole]):
        found = relation(pools)
        assert (found.first, found.second, found.kind, found.recorded) == ("whole", "part", "pruned", False)
        assert "part looks like a pruning of whole, though no lineage says so." in found.text
        assert "2 of its 2 batches are among the 4 there, with the same labels bit for bit." in found.text


def test_lineage_is_followed_over_several_steps(tmp_path: Path) -> None:
    batches = make_batches(2, 2)
    first = with_lineage(tmp_path / "first", batches)
    prune = LineageStep(
        operation="prune", parent_digest=first.manifest.content_digest, parameters={"ratio": 2.0}
    )
    second = with_lineage(tmp_path / "second", batches[:2], prune)
    encode = LineageStep(
        operation="encode",
        parent_digest=second.manifest.content_digest,
        parameters={"codec": "f16", "codec_before": "f16"},
    )
    third = with_lineage(tmp_path / "third", batches[:1], prune, encode)
    relations = compare_pools([third, second, first]).relations
    kinds = {(r.first, r.second): r.kind for r in relations}
    assert kinds == {
        ("second", "third"): "encoded",
        ("first", "third"): "derived",
        ("first", "second"): "pruned",
    }
    derived = next(r for r in relations if r.kind == "derived")
    assert (
        "third came from first: pruned 2x, then encoded from f16 to f16 (its lineage says so)."
        in derived.text
    )
    nearest = parent_of("third", relations)
    assert nearest is not None
    assert nearest.first == "second"
    assert parent_of("first", relations) is None


def test_prunings_of_the_same_pool_are_siblings_that_nest(tmp_path: Path) -> None:
    batches = make_batches(2, 2)
    whole = with_lineage(tmp_path / "whole", batches)
    prune = LineageStep(operation="prune", parent_digest=whole.manifest.content_digest)
    more = with_lineage(tmp_path / "more", batches[:2], prune)
    less = with_lineage(tmp_path / "less", batches[:1], prune)
    relations = compare_pools([whole, more, less]).relations
    assert [r.kind for r in relations] == ["pruned", "pruned", "siblings"]
    assert "All of less is inside more: prunings nest." in relations[2].text
    parent = parent_of("less", relations)
    assert parent is not None
    assert parent.first == "whole"


def test_pools_of_the_same_names_and_other_views_are_unrelated(tmp_path: Path) -> None:
    one = write_pool(tmp_path / "one", make_batches(1, 2))
    moved = [replace(batch, flips=~batch.flips) for batch in make_batches(1, 2)]
    found = relation([one, write_pool(tmp_path / "two", moved)])
    assert (found.kind, found.shared, found.identical) == ("unrelated", 2, 0)
    assert "batches of the same names show other views" in found.text
    far = relation([one, write_pool(tmp_path / "three", [make_batch(5, 5)])])
    assert (far.kind, far.shared) == ("unrelated", 0)
    relabelled = [replace(batch, labels=-batch.labels) for batch in make_batches(1, 2)]
    again = relation([one, write_pool(tmp_path / "four", relabelled)])
    assert (again.kind, again.shared, again.identical) == ("overlapping", 2, 0)


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


def test_pages_hold_whatever_names_say(tmp_path: Path) -> None:
    header = make_header()
    header = replace(header, teachers=(replace(header.teachers[0], name=HOSTILE),))
    folder = tmp_path / 'it\'s "quoted" <i>'
    folder.mkdir()
    pools = [write_pool(folder / "a", make_batches(1, 2), header=header), write_pool(tmp_path / "a", [])]
    comparison = compare_pools(pools)
    page = read_page(comparison_page(comparison))
    assert 'it\'s "quoted" <i>/a' in page.text
    assert "<script>alert(1)</script>" in page.text


def test_names_tell_pools_apart() -> None:
    assert pool_names(["x/a", "y/b/"]) == ["a", "b"]
    assert pool_names(["x/a", "y/a"]) == ["x/a", "y/a"]
    assert pool_names(["x/a", "x/a"]) == ["x/a (1)", "x/a (2)"]


def test_one_pool_is_no_comparison(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="needs two pools"):
        compare_pools([write_pool(tmp_path / "a", [])])
