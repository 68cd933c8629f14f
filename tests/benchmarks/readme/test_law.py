"""The section on what a pruning costs."""

import pytest

from benchmarks.readme.law import law
from benchmarks.readme.parts import Results


@pytest.mark.parametrize("name", ["scale", "views_exponent", "ratio_exponent"])
def test_the_sentence_names_the_constants(name: str) -> None:
    assert f"{Results()['pruning_law'][name]:.2f}" in "\n".join(law(Results()))
