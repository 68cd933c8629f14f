"""Transform-coded labels on real logits: fitted on every other batch, judged on others."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benchmarks.common.label_source import real_batches
from lpld_labels.codecs import codec_named
from lpld_labels.codecs.fidelity import Trial, try_codec
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.codecs.packing import pack_bands

Labels = npt.NDArray[Any]


@pytest.fixture(scope="module")
def real() -> tuple[KltFitter, list[Labels]]:
    logits = [batch.labels for batch in real_batches()]
    rest = logits[1::2]
    fitted = KltFitter(fit=logits[::2], tune=rest[:6], rows=1_000_000, batch_size=128)
    return fitted, rest[6:]


def judged(codec: Any, labels: list[Labels]) -> Trial:
    return try_codec(codec, labels, batch_size=128)


def test_real_logits_in_180_bytes(real: tuple[KltFitter, list[Labels]]) -> None:
    trial = judged(real[0].for_fidelity(0.965, temperature=20), real[1])
    assert trial.payload_per_row <= 180
    assert trial.fidelity.kept[20] >= 0.96
    assert trial.fidelity.kept[1] >= 0.99
    assert trial.fidelity.top1 == 1
    for simple in ("topk:50", "topk:80:8"):
        other = judged(codec_named(simple), real[1])
        assert all(other.fidelity.kept[t] < trial.fidelity.kept[t] for t in (1.0, 4.0, 20.0))


def test_real_logits_at_temperature_one(real: tuple[KltFitter, list[Labels]]) -> None:
    codec = real[0].for_fidelity(0.93, temperature=1)
    assert codec.peaks > 1, "at low temperatures it pays to correct more of the largest labels"
    trial = judged(codec, real[1])
    rival = judged(codec_named("topk:20:8"), real[1])
    assert trial.payload_per_row < rival.payload_per_row
    assert trial.fidelity.kept[1] > rival.fidelity.kept[1]


def test_real_logits_in_100_bytes(real: tuple[KltFitter, list[Labels]]) -> None:
    trial = judged(real[0].for_fidelity(0.905, temperature=20), real[1])
    assert trial.payload_per_row <= 100
    assert trial.fidelity.kept[20] >= 0.90


def test_entropy_coding_is_within_a_tenth_of_the_entropy(real: tuple[KltFitter, list[Labels]]) -> None:
    codec = real[0].codec(1.0)
    integers = np.concatenate([codec.numbers(block).integers for block in real[1]])
    entropy = 0.0
    for column in integers.T:
        share = np.unique(column, return_counts=True)[1] / len(column)
        entropy -= float((share * np.log2(share)).sum())
    packed = sum(
        len(blob) for block in real[1] for blob in pack_bands(codec.numbers(block).integers, codec.edges)
    )
    assert packed / len(integers) <= 1.1 * entropy / 8
