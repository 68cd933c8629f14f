from dataclasses import asdict
from typing import Any

import numpy as np

from lpld_labels import Augmentation, ImageTable
from lpld_labels.format.digests import views_digest
from lpld_labels.format.drawing import draw_views, exp, log
from lpld_labels.format.random_streams import batch_ranks, keyed_generator
from tests.golden.expected import views_json

SIDES = ([48, 20, 640, 31, 31, 7, 224], [32, 200, 480, 31, 33, 1, 224])
"""Heights and widths of the images that are drawn from."""
SETTINGS: tuple[dict[str, Any], ...] = (
    {"crop_scale": (0.08, 1.0), "crop_ratio": (0.75, 4 / 3), "flip_probability": 0.5},
    {"crop_scale": (0.5, 0.9), "flip_probability": 0.0, "mix": "cutmix", "mix_alpha": 1.0},
    {"mix": "mixup", "mix_alpha": 0.8},
    {"crop_scale": (1.0, 1.0), "crop_ratio": (0.1, 0.2), "cutout_fraction": 0.3, "patch_grid": 3},
)


def vectors() -> dict[str, Any]:
    """Return all vectors. Floats are text, as `float.hex` gives them."""
    points = np.array([-3.5, -0.28768207245178096, 0.0, 1e-9, 0.28768207245178096, 0.7, 12.25])
    return {
        "streams": [
            {"seed": seed, "place": list(place), "draws": _hex(keyed_generator(seed, *place).random(4))}
            for seed, place in ((0, ()), (0, (0,)), (7, (3, 2)), (2**64 - 1, (2**31 - 1, 5)))
        ],
        "exp": [[x.hex(), y.hex()] for x, y in zip(points.tolist(), exp(points).tolist(), strict=True)],
        "log": [[x.hex(), log(x).hex()] for x in (0.75, 4 / 3, 1.0, 0.1, 7.5, 1e-5, 2.0)],
        "ranks": [
            {"seed": seed, "epoch": epoch, "batch": batch, "rank": int(batch_ranks(seed, epoch, batch)[0])}
            for seed, epoch, batch in ((0, 0, 0), (0, 1, 0), (5, 12, 34), (2**64 - 1, 299, 2**31))
        ],
        "heights": SIDES[0],
        "widths": SIDES[1],
        "batch_size": 4,
        "batches": [_batch(how, seed, epoch, batch) for how in SETTINGS for seed, epoch, batch in _PLACES],
    }


_PLACES = ((0, 0, 0), (12345, 7, 1), (2**40 + 7, 300, 1))


def _batch(how: dict[str, Any], seed: int, epoch: int, batch: int) -> dict[str, Any]:
    augmentation = Augmentation(output_height=24, output_width=20, resize="torch", **how)
    views = draw_views(augmentation, table(), seed=seed, epoch=epoch, batch=batch, batch_size=4)
    return {
        "augmentation": asdict(augmentation),
        "seed": seed,
        "mix_strength": None if views.mix is None else views.mix.strength.hex(),
        "views": views_json(views),
        "views_digest": views_digest(views).hex(),
    }


def table() -> ImageTable:
    """Return the images that are drawn from."""
    heights, widths = (np.array(sides, np.int32) for sides in SIDES)
    return ImageTable(
        paths=[f"{i}.png" for i in range(len(heights))],
        classes=np.zeros(len(heights), np.int32),
        widths=widths,
        heights=heights,
        digests=[None] * len(heights),
    )


def _hex(values: np.ndarray[Any, np.dtype[np.float64]]) -> list[str]:
    return [value.hex() for value in values.tolist()]
