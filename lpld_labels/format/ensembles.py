"""How several teachers' logits become one label: the rules, and the words a manifest records them in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

EnsembleRule = Literal["average", "norm-scaled"]

ENSEMBLE_WORDS: Mapping[EnsembleRule, str] = {
    "norm-scaled": "mean of logits scaled to the teachers' mean Frobenius norm per batch",
    "average": "plain mean of logits",
}
"""What `PoolHeader.ensemble` says for each rule."""

_OLDER_WORDS: Mapping[str, EnsembleRule] = {
    "logits of several teachers, scaled to their mean norm, averaged": "norm-scaled"
}


def ensemble_rule(words: str | None) -> EnsembleRule | None:
    """Return the rule a manifest's words stand for; None where they say nothing that is known here."""
    for rule, known in ENSEMBLE_WORDS.items():
        if words == known:
            return rule
    return _OLDER_WORDS.get(words or "")
