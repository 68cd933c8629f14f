"""Encoding pools: every codec, resuming, processes, budgets, and what is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lpld_labels import LabelBatch, PoolReader
from lpld_labels.codecs import codec_named
from lpld_labels.errors import (
    InvalidArgumentError,
    PoolConflictError,
    PoolCorruptError,
    StagingMismatchError,
)
from lpld_labels.exec.local import LocalExecutor
from lpld_labels.inspect.check import check_pool
from lpld_labels.pool.sizes import pool_bytes
from lpld_labels.pool.unfinished import partial_directory
from lpld_labels.transforms.encode import EncodeResult, encode_pool
from lpld_labels.transforms.sample import LabelSample
from lpld_labels.transforms.settings import EncodeSettings
from tests.factories import assert_same_views, make_batch, make_header, make_images, write_pool
from tests.label_factory import make_logits, make_probabilities

CLASSES = 40
ROWS = 32


def labelled(batches: int = 12, *, probabilities: bool = False, classes: int = CLASSES) -> list[LabelBatch]:
    """Return batches whose labels look like a network's; the last one is incomplete."""
    images = make_images(classes=classes)
    made = []
    for number in range(batches):
        rows = ROWS if number < batches - 1 or batches == 1 else ROWS // 2
        blank = make_batch(number // 4, number % 4, rows=rows, classes=classes, images=images)
        make = make_probabilities if probabilities else make_logits
        made.append(replace(blank, labels=make(rows, classes, seed=number)))
    return made


@pytest.fixture
def pool(tmp_path: Path) -> PoolReader:
    header = make_header(CLASSES, ROWS)
    return write_pool(tmp_path / "pool", labelled(), header=header)


def kept_of(result: EncodeResult) -> dict[float, float]:
    assert result.fidelity is not None
    return result.fidelity.kept


REQUESTS = {
    "int8": EncodeSettings(codec="int8"),
    "int4": EncodeSettings(codec="int4"),
    "f16:plain": EncodeSettings(codec="f16:plain"),
    "topk": EncodeSettings(codec="topk:10:8"),
    "klt": EncodeSettings(codec="klt", fidelity=0.97, temperature=4),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_every_codec(tmp_path: Path, pool: PoolReader, request_: EncodeSettings) -> None:
    result = encode_pool(pool, tmp_path / "out", request_)
    assert check_pool(tmp_path / "out").whole
    with PoolReader(tmp_path / "out") as out:
        assert list(out.keys) == list(pool.keys)
        for key in out.keys:
            assert_same_views(out.read_views(key), pool.read_views(key))
            decoded = out.read_labels(key)
            assert np.isfinite(decoded).all()
            assert decoded.shape == pool.read_labels(key).shape
        step = out.header.lineage[-1]
        assert step.operation == "encode"
        assert step.parent_digest == pool.manifest.content_digest
        assert result.fidelity is not None
        assert step.parameters["fidelity"] == result.fidelity.as_json()
    assert result.before == pool_bytes(pool.manifest)
    assert result.after == sum(f.stat().st_size for f in (tmp_path / "out").rglob("*") if f.is_file())
    assert kept_of(result)[20] > (0.3 if str(request_.codec).startswith("topk") else 0.9)


def test_lossless_there_and_back(tmp_path: Path, pool: PoolReader) -> None:
    plain = encode_pool(pool, tmp_path / "plain", EncodeSettings(codec="f16:plain"))
    assert plain.manifest.content_digest == pool.manifest.content_digest
    assert kept_of(plain) == {1.0: 1.0, 4.0: 1.0, 20.0: 1.0}
    back = encode_pool(PoolReader(tmp_path / "plain"), tmp_path / "back", EncodeSettings(codec="f16"))
    assert back.manifest.content_digest == pool.manifest.content_digest
    assert [step.operation for step in back.manifest.header.lineage] == ["encode", "encode"]


def test_processes_write_the_same_pool(tmp_path: Path, pool: PoolReader) -> None:
    done: list[tuple[int, int]] = []
    alone = encode_pool(pool, tmp_path / "alone", EncodeSettings(codec="klt", fidelity=0.95))
    together = encode_pool(
        pool,
        tmp_path / "together",
        EncodeSettings(codec="klt", fidelity=0.95),
        executor=LocalExecutor(2),
        progress=lambda d, t: done.append((d, t)),
    )
    assert together.manifest.content_digest == alone.manifest.content_digest
    assert done[-1] == (12, 12)


def test_an_interrupted_run_goes_on(
    tmp_path: Path, pool: PoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 3)
    settings = EncodeSettings(codec="klt", fidelity=0.95)
    whole = encode_pool(pool, tmp_path / "whole", settings)

    def stop(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        encode_pool(pool, out, settings, progress=stop)
    assert not out.exists()
    assert partial_directory(out).is_dir()
    done: list[int] = []
    result = encode_pool(pool, out, settings, progress=lambda d, t: done.append(d))
    assert result.manifest.content_digest == whole.manifest.content_digest
    assert done[-1] == 12
    assert min(done) >= 6, "two of four shards were safe already"
    assert not partial_directory(out).exists()
    again = encode_pool(pool, out, settings, progress=lambda d, t: pytest.fail("nothing is left to do"))
    assert again.manifest == result.manifest
    assert again.fidelity is not None
    assert result.fidelity is not None
    assert again.fidelity.as_json() == result.fidelity.as_json()


def test_other_settings_do_not_mix_with_unfinished_work(
    tmp_path: Path, pool: PoolReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lpld_labels.pool.plan.SHARD_BATCHES", 3)

    def stop(done: int, total: int) -> None:
        if done == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_pool(pool, tmp_path / "out", EncodeSettings(codec="int8"), progress=stop)
    with pytest.raises(StagingMismatchError):
        encode_pool(pool, tmp_path / "out", EncodeSettings(codec="int4"))


def test_lossy_pools_are_not_encoded_again_by_accident(tmp_path: Path, pool: PoolReader) -> None:
    encode_pool(pool, tmp_path / "int8", EncodeSettings(codec="int8"))
    with PoolReader(tmp_path / "int8") as lossy:
        with pytest.raises(InvalidArgumentError, match="already lost information"):
            encode_pool(lossy, tmp_path / "out", EncodeSettings(codec="int4"))
        assert not (tmp_path / "out").exists()
        encode_pool(lossy, tmp_path / "out", EncodeSettings(codec="int4", from_lossy=True))


def test_the_output_must_be_free(tmp_path: Path, pool: PoolReader) -> None:
    with pytest.raises(InvalidArgumentError, match="the output is the same as an input"):
        encode_pool(pool, tmp_path / "pool", EncodeSettings(codec="int8"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(PoolConflictError, match="already here"):
        encode_pool(pool, tmp_path / "other", EncodeSettings(codec="int8"))


def test_a_swapped_basis_is_refused(tmp_path: Path, pool: PoolReader) -> None:
    encode_pool(pool, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.97))
    encode_pool(pool, tmp_path / "other", EncodeSettings(codec="klt", fidelity=0.97, seed=1))
    table = tmp_path / "out" / "codec" / "mean.npy"
    shutil.copy(tmp_path / "other" / "codec" / "mean.npy", table)
    with pytest.raises(PoolCorruptError, match=r"mean\.npy.*not the one this pool was written with"):
        PoolReader(tmp_path / "out")
    # One of another size is refused as well.
    (tmp_path / "out" / "codec" / "basis.pco").write_bytes(b"something else")
    with pytest.raises(PoolCorruptError, match=r"basis\.pco"):
        PoolReader(tmp_path / "out")


def test_a_single_batch_and_an_empty_pool(tmp_path: Path) -> None:
    with write_pool(tmp_path / "one", labelled(1), header=make_header(CLASSES, ROWS)) as one:
        result = encode_pool(one, tmp_path / "out", EncodeSettings(codec="klt", fidelity=0.9))
        assert result.manifest.counts.rows == ROWS
    with (
        write_pool(tmp_path / "none", []) as none,
        pytest.raises(InvalidArgumentError, match="no labels"),
    ):
        encode_pool(none, tmp_path / "nothing", EncodeSettings(codec="int8"))


def test_estimates_are_close(tmp_path: Path, pool: PoolReader) -> None:
    for name in ("int8", "topk:10", "f16"):
        codec = codec_named(name)
        counts = pool.manifest.counts
        settings = EncodeSettings(codec=name)
        size = LabelSample(pool, settings).weigh(codec)
        estimate = size.total(counts.batches, counts.rows, incomplete=counts.incomplete_batches)
        written = encode_pool(pool, tmp_path / name.replace(":", "_"), settings).after
        assert written <= estimate < 1.25 * written


def test_probabilities(tmp_path: Path) -> None:
    header = make_header(CLASSES, ROWS, label_kind="probabilities")
    with write_pool(tmp_path / "pool", labelled(probabilities=True), header=header) as pool:
        for name, request in {
            "klt": EncodeSettings(codec="klt", fidelity=0.97, temperature=1),
            "topk": EncodeSettings(codec="topk:10"),
            "int8": EncodeSettings(codec="int8"),
        }.items():
            result = encode_pool(pool, tmp_path / name, request)
            assert kept_of(result)[1] > 0.9
            with PoolReader(tmp_path / name) as out:
                total = out.read_labels((0, 0)).astype(np.float64).sum(axis=1)
                np.testing.assert_allclose(total, 1, atol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"codec": "int8", "fidelity": 0.9}, "has no fidelity"),
        ({"codec": "int8", "temperature": 4.0}, "has no temperature"),
    ],
)
def test_requests_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        EncodeSettings(**options)
