from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.settings import Setting, check_settings


@dataclass(frozen=True, kw_only=True)
class Settings:
    ipc: Annotated[int, Setting("Images per class.", ge=1)] = 1
    learning_rate: Annotated[float, Setting("Rate.", gt=0, le=1)] = 0.5
    by: Annotated[Literal["random", "diff"], Setting("How.")] = "random"
    heat: Annotated[float | Literal["same"], Setting("Of the output.", gt=0)] = "same"
    crop_scale: Annotated[tuple[float, float], Setting("Area.", ge=0, le=1)] = (0.1, 1.0)

    def __post_init__(self) -> None:
        check_settings(self)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("ipc", 0, "a number >= 1"),
        ("learning_rate", float("nan"), "a number > 0 and <= 1"),
        ("by", "luck", "one of random, diff"),
        ("by", None, "one of random, diff"),
        ("heat", "hot", "one of same or a number"),
        ("heat", 0.0, "a number > 0"),
        ("crop_scale", (0.1, 1.5), "a number >= 0 and <= 1"),
    ],
)
def test_values_outside_of_range_or_choices_are_refused(field: str, value: Any, expected: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field.replace('_', ' ')} is wrong.*{expected}"):
        Settings(**{field: value})
