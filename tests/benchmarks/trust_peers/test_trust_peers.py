from __future__ import annotations

import random

import pytest

from benchmarks.trust_peers.__main__ import KINDS, damaged
from tests.benchmarks.conftest import QuickRun


@pytest.mark.thorough
def test_quick_run(quick_run: QuickRun) -> None:
    rows = {row["store"]: row["outcomes"] for row in quick_run("benchmarks.trust_peers.__main__")}
    assert {"lpld-labels, f16", "torch.load", "safetensors"} <= set(rows)
    for name in ("lpld-labels, f16", "lpld-labels, f16:plain"):
        assert rows[name]["wrong labels"] == rows[name]["died"] == 0
        assert rows[name]["refused"] > 10


def test_every_damage_changes_something() -> None:
    data = bytes(range(256)) * 4
    for kind in KINDS:
        changed = [damaged(data, kind, random.Random(number)) for number in range(20)]
        assert sum(found != data for found in changed) > 10
