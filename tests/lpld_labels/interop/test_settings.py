import math
from typing import Any

import pytest

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.interop.settings import ImportOptions

GREY = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mean": GREY, "std": (0.0, 0.0, 0.0)}, "std is wrong"),
        ({"mean": GREY, "std": (math.nan,) * 3}, "std is wrong"),
        ({"mean": (math.inf, 0.0, 0.0), "std": GREY}, "mean is wrong"),
        ({"mean": GREY}, "give both"),
        ({"output_size": 99_999_999}, "output size is wrong.*<= 65535"),
        ({"output_size": 0}, "output size is wrong"),
        ({"classes": 99_999_999_999}, "classes is wrong"),
        ({"batch_size": 99_999_999_999}, "batch size is wrong"),
        ({"sampler_seed": 10**30}, "sampler seed is wrong"),
        ({"temperature": math.inf}, "temperature is wrong"),
        ({"temperature": math.nan}, "temperature is wrong"),
        ({"teachers": ("a", "b\udcff")}, r"teachers is wrong.*b\\udcff"),
    ],
)
def test_what_no_pool_can_say_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=said):
        ImportOptions(**options)
