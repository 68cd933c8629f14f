"""A small part of the damage campaign; `make damage` runs all of it."""

from __future__ import annotations

from tests.damage.campaign import cases, run


def test_damage_is_refused_or_does_no_harm() -> None:
    outcomes = run(cases(400, seed=1))
    assert set(outcomes) <= {"refused", "right"}, outcomes
    # What does no harm hit bytes that nobody reads: footers and keys of labels files.
    assert outcomes["refused"] > 300
