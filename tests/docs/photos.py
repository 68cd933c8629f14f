from pathlib import Path

import numpy as np
from PIL import Image


def write_photos(folder: Path, *, per_class: int, seed: int) -> None:
    """Write noise around a colour of each class's own."""
    rng = np.random.default_rng(seed)
    for name, color in (("cats", (200, 60, 60)), ("dogs", (60, 60, 200)), ("owls", (60, 180, 60))):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            pixels = np.clip(rng.normal(color, 40, (44, 36, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number:04d}.jpg")
