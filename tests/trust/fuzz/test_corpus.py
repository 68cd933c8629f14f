"""Every input of the corpora, and every crash that was found, is read or refused. Needs no fuzzer."""

from __future__ import annotations

import warnings

import pytest

from tests.trust.fuzz.__main__ import CORPUS
from tests.trust.fuzz.coverage import reached
from tests.trust.fuzz.targets import TARGETS, tried


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_read_or_refused(name: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert inputs
    with warnings.catch_warnings():
        # Decoders may say that a file is odd.
        warnings.simplefilter("ignore")
        for data in (*inputs, *TARGETS[name].seeds()):
            tried(TARGETS[name], data)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_reaches_most_of_its_parser(name: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    found, total = reached(TARGETS[name], [*inputs, *TARGETS[name].seeds()])
    assert found > total / 2


def test_there_is_a_target_for_every_corpus() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(TARGETS)


def test_a_crash_would_be_noticed() -> None:
    from dataclasses import replace

    def crash(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        tried(replace(TARGETS["manifest"], run=crash), b"")
