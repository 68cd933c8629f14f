"""A missing optional dependency is named with the extra that installs it."""

from __future__ import annotations

import pytest

from lpld_labels.errors import MissingExtraError, extras_required


def test_a_missing_extra_is_named() -> None:
    message = r"needs ray, .*pip install 'lpld-labels\[ray\]'"
    with pytest.raises(MissingExtraError, match=message), extras_required():
        raise ModuleNotFoundError("No module named 'ray'", name="ray.util")


def test_other_modules_are_not_ours_to_explain() -> None:
    with pytest.raises(ModuleNotFoundError, match="numpi"), extras_required():
        raise ModuleNotFoundError("No module named 'numpi'", name="numpi")
