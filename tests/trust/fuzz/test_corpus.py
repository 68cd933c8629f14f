"""Every input of the corpora, and every crash that was found, is read or refused. Needs no fuzzer."""

from dataclasses import replace

import pytest

from tests.trust.fuzz.__main__ import CORPUS
from tests.trust.fuzz.targets import TARGETS, reached, tried


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_read_or_refused_and_reach_most_of_the_parser(name: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert inputs
    found, total = reached(TARGETS[name], [*inputs, *TARGETS[name].seeds()])
    assert found > total / 2


def test_there_is_a_target_for_every_corpus() -> None:
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(TARGETS)


def test_a_crash_would_be_noticed() -> None:
    def crash(data: bytes) -> None:
        raise KeyError(data)

    with pytest.raises(KeyError):
        tried(replace(TARGETS["manifest"], run=crash), b"")
