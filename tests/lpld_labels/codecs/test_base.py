"""A codec registered in one place works in every command."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from click.testing import Result

from lpld_labels import PoolReader
from lpld_labels.codecs import CODECS
from lpld_labels.codecs.base import Codec, EncodedLabels, Payload, raw_bytes
from lpld_labels.format.digests import CanonicalBytes
from lpld_labels.format.records import LabelArray
from lpld_labels.format.schema import Column
from lpld_labels.loader import pool_loader
from tests.lpld_core.image_folders import NETWORK, SIDE, write_images


class TenthsCodec(Codec):
    """Labels rounded to tenths, as int16: a toy."""

    name = "tenths"
    planned = True

    def payload_columns(self, classes: int) -> tuple[Column, ...]:
        return (Column(name="tenths", type=pa.binary(), component="labels"),)

    def encode(self, labels: LabelArray) -> EncodedLabels:
        tenths = np.rint(labels.astype(np.float32) * 10).astype("<i2")
        payload = {"tenths": pa.array([tenths.tobytes()], pa.binary())}
        return EncodedLabels(payload=payload, canonical=[raw_bytes(tenths)])

    def decode(
        self, payload: Payload, *, rows: int, classes: int, dtype: npt.DTypeLike = np.float32
    ) -> LabelArray:
        tenths = np.frombuffer(payload["tenths"][0].as_py(), "<i2").reshape(rows, classes)
        return np.asarray(tenths / np.float32(10), dtype)

    def canonical(self, payload: Payload, *, rows: int, classes: int) -> CanonicalBytes:
        return [payload["tenths"][0].as_py()]


@pytest.fixture
def registered() -> Iterator[None]:
    CODECS[TenthsCodec.name] = TenthsCodec
    yield
    del CODECS[TenthsCodec.name]


@pytest.mark.usefixtures("registered")
def test_a_new_codec_works_everywhere(tmp_path: Path, cli: Callable[..., Result]) -> None:
    def run(*words: object) -> Any:
        result = cli(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    images = write_images(tmp_path / "images")
    teacher = ("--teacher", NETWORK, "--teacher-weights", "random", "--size", SIDE, "--threads", 1)
    settings = ("--preset", "tiny", "--epochs", 3, "--batch-size", 5, "--seed", 3)
    built = run("build", images, tmp_path / "built", *teacher, *settings, "--codec", "tenths")
    run("build", images, tmp_path / "f16", *teacher, *settings)
    encoded = run("encode", tmp_path / "f16", tmp_path / "encoded", "--codec", "tenths")
    assert encoded["content_digest"] == built["content_digest"]
    assert encoded["fidelity"]["kept"]["20"] > 0.5
    assert run("inspect", tmp_path / "built")["codec"] == "tenths"
    assert run("verify", tmp_path / "built")["whole"]
    pruned = run("prune", tmp_path / "built", tmp_path / "pruned", "--ratio", 2)
    planned = run("plan", tmp_path / "f16", "--budget", "1MB", "--min-fidelity", 0.5)
    assert "tenths" in {row["codec"] for row in planned["rows"]}
    applied = run("plan", tmp_path / "f16", "--budget", "1MB", "--codec", "tenths", "--apply", tmp_path / "a")
    assert applied["applied"]["content_digest"] == built["content_digest"]
    with PoolReader(tmp_path / "pruned") as pool:
        assert len(pool) == pruned["batches"]["kept"]
        labels = np.concatenate([batch.labels.numpy() for batch in pool_loader(pool, images)])
        stored = np.concatenate([batch.labels for batch in pool])
    assert {row.tobytes() for row in labels} <= {row.tobytes() for row in stored}
