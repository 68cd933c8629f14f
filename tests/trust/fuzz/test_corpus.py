"""Every input of the corpora, and every crash that was found, is read or refused. Needs no fuzzer."""

import pytest

from tests.trust.fuzz.__main__ import CORPUS
from tests.trust.fuzz.targets import TARGETS, reached


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_are_read_or_refused_and_reach_most_of_the_parser(name: str) -> None:
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert inputs
    found, total = reached(TARGETS[name], [*inputs, *TARGETS[name].seeds()])
    assert found > total / 2
