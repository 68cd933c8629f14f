"""Numbers that are far too large fail before anything of that length is made."""

from typing import Any

import pytest

from lpld_core.recover.settings import RdedSettings, RecoverSettings
from lpld_core.settings import BuildSettings
from lpld_core.train.settings import TrainSettings
from lpld_labels.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"epochs": 99_999_999_999_999}, "epochs is wrong.*>= 1 and <= 2147483648"),
        ({"batch_size": 99_999_999}, "batch size is wrong.*>= 1 and <= 65536"),
        ({"seed": 2**64}, "seed is wrong"),
        ({"epochs": 0}, "epochs is wrong"),
    ],
)
def test_what_no_pool_has_room_for_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        BuildSettings(**settings)
    if "seed" in settings:
        with pytest.raises(InvalidArgumentError, match=said):
            TrainSettings(**settings)


@pytest.mark.parametrize("method", ["lpld", "sre2l", "rded"])
def test_more_images_than_are_ever_listed_are_refused(method: str) -> None:
    kind: dict[str, Any] = {"ipc": 10**11, "size": (16, 16)}
    given: Any = {"method": method, "statistics_kind": "class" if method == "lpld" else "global"}
    rates: dict[str, Any] = {"iterations": 1, "learning_rate": 0.1, "alpha": 0.1, "roll": 0}
    settings = RdedSettings(**kind) if method == "rded" else RecoverSettings(**kind, **given, **rates)
    with pytest.raises(InvalidArgumentError, match="too many images for one job"):
        settings.groups(3)
