"""Pools that a reader must refuse: each at its stage at the latest, with an error that names a file."""

import contextlib
import shutil
from pathlib import Path

import pytest

from lpld_labels import LabelPoolError, PoolReader
from lpld_labels.inspect.check import check_pool
from tests.golden.crafting.crafted import Crafted, place_groups
from tests.independent_reader import verify

REFUSE = Path(__file__).parents[2] / "golden" / "refuse"
NAMES = sorted(path.name for path in REFUSE.iterdir())
FILES = ("pool.json", ".parquet", ".npy", ".pco")


def _use(path: Path) -> None:
    with PoolReader(path) as pool:
        assert len(pool.images)
        for number in range(len(pool)):
            pool.views_at(number)
            pool.labels_at(number)


@pytest.mark.parametrize("base", ["f16-plain", "cutmix", "patches", "int8", "probabilities", "packed"])
def test_a_pool_written_again_unchanged_is_whole(base: str, tmp_path: Path) -> None:
    pool = Crafted(REFUSE.parent / "v1" / base)
    for role in ("images", "views", "labels", *(["packed"] if base == "packed" else [])):
        pool.put(role, pool.table(role))
    place_groups(pool)
    pool.sign_batches()
    assert pool.manifest["content_digest"] == Crafted(REFUSE.parent / "v1" / base).manifest["content_digest"]
    pool.save(tmp_path / base)
    assert check_pool(tmp_path / base, strict=True).problems == ()
    verify(tmp_path / base)


@pytest.mark.parametrize("name", NAMES)
def test_a_pool_is_refused(name: str, tmp_path: Path) -> None:
    stage = (REFUSE / name / "reason.txt").read_text().split()[0]
    # Links in a working copy may have become files; here they are made anew.
    path = tmp_path / name
    shutil.copytree(REFUSE / name, path, symlinks=True)
    if stage == "verify":
        _use(path)
        report = check_pool(path)
        assert not report.whole
        assert all(any(end in problem.file for end in FILES) for problem in report.problems)
        return
    with contextlib.suppress(LabelPoolError):
        assert not check_pool(path).whole
    if stage == "read":
        PoolReader(path).close()
    with pytest.raises(LabelPoolError) as caught:
        PoolReader(path).close() if stage == "open" else _use(path)
    assert name == "manifest-missing" or any(end in str(caught.value) for end in FILES), caught.value
