"""Applying augmentation: images per second and thread, against PIL per image in the same run.

    python -m benchmarks.speed.augmenting --json benchmarks/results/apply_speed.json

The baseline does what training programs do today, image by image: open, crop, resize, flip (PIL),
ToTensor, Normalize, and stack. It is timed from files and from PIL images that are already decoded.
Ours turns the same views into the same normalised batch from decoded uint8 images. Everything runs
on one thread; before anything is timed, the results are compared.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table
from torchvision.transforms import functional

from benchmarks.common.harness import Timing, interleaved, parsed, write_json
from benchmarks.common.photos import add_images_option, photo_folder
from lpld_labels import Augmentation, ViewBatch
from lpld_labels.render import ImageStore, apply_views, draw_views, normalise
from lpld_labels.render.images import FolderImages, scan_image_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SIZES = (224, 64)
PHOTOS = 96
BASELINE = "PIL from decoded images"
OURS = "replay"


@dataclass(frozen=True, kw_only=True)
class ApplySpeed:
    """What was measured for one image size: seconds per batch by way of making it."""

    size: int
    images: int
    timings: dict[str, Timing]

    def images_per_second(self, way: str) -> float:
        """Return how many images per second and thread one way makes."""
        return self.images / self.timings[way].median

    @property
    def speed_up(self) -> float:
        """How many times faster replay is than PIL, both from decoded images."""
        return self.images_per_second(OURS) / self.images_per_second(BASELINE)

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for a results file."""
        return {
            "image_size": self.size,
            "images_per_batch": self.images,
            "speed_up": round(self.speed_up, 2),
            "ways": {
                way: {"images_per_second": round(self.images_per_second(way), 1), **timing.as_json()}
                for way, timing in self.timings.items()
            },
        }


def measure_apply_speed(folder: Path, *, size: int, runs: int, batch_size: int = 60) -> ApplySpeed:
    """Time every way of making one batch of normalised views from the images of a folder."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ways, images = _ways(folder, size, batch_size)
        _check(ways)
        return ApplySpeed(size=size, images=images, timings=interleaved(ways, runs=runs))
    finally:
        torch.set_num_threads(threads)


def _ways(folder: Path, size: int, batch_size: int) -> tuple[dict[str, Callable[[], torch.Tensor]], int]:
    table = scan_image_folder(folder)
    store = ImageStore(FolderImages(folder, table))
    for index in range(len(store)):
        store[index]
    plan = Augmentation(
        output_height=size, output_width=size, resize="torch", crop_scale=(0.08, 1.0), flip_probability=0.5
    )
    views = draw_views(plan, table, seed=0, epoch=0, batch=0, batch_size=batch_size)
    files = [folder / table.paths[index] for index in views.images.tolist()]
    decoded = [Image.fromarray(store[index]) for index in views.images.tolist()]

    def replay(out: torch.Tensor | None = None) -> torch.Tensor:
        return apply_views(views, store, plan, dtype=torch.uint8, out=out)

    as_bytes, as_floats = replay(), normalise(replay(), MEAN, STD)

    ways: dict[str, Callable[[], torch.Tensor]] = {
        "PIL from files": lambda: _with_pil([_opened(path) for path in files], views, size),
        BASELINE: lambda: _with_pil(decoded, views, size),
        "replay, fresh memory": lambda: normalise(replay(), MEAN, STD),
        OURS: lambda: normalise(replay(as_bytes), MEAN, STD, out=as_floats),
    }
    return ways, views.rows


def _opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        rgb: Image.Image = image.convert("RGB")
        return rgb


def _with_pil(images: list[Image.Image], views: ViewBatch, size: int) -> torch.Tensor:
    """Return float32 [B, 3, size, size] the way torchvision's transforms make it from PIL images."""
    batch = []
    for image, crop, flip in zip(images, views.crops.tolist(), views.flips.tolist(), strict=True):
        view = functional.resized_crop(image, *crop, [size, size])
        view = functional.hflip(view) if flip else view
        batch.append(functional.normalize(functional.to_tensor(view), list(MEAN), list(STD)))
    return torch.stack(batch)


def _check(ways: dict[str, Callable[[], torch.Tensor]]) -> None:
    """Refuse to time ways that do not make the same batch, within two grey levels."""
    expected = ways["PIL from files"]()
    for way, make in ways.items():
        difference = float((make() - expected).abs().max()) * 255 * max(STD)
        if difference > 2:
            raise RuntimeError(f"{way}: differs from PIL from files by {difference:.1f} grey levels")


def main() -> None:
    """Measure, show and write."""
    parser = argparse.ArgumentParser(description="Apply-augmentation speed against PIL per image.")
    parser.add_argument("--json", type=Path, help="write the results here")
    parser.add_argument("--quick", action="store_true", help="few runs; figures are rough")
    add_images_option(parser)
    arguments = parsed(parser)
    runs, batch_size = (3, 12) if arguments.quick else (25, 60)
    results = []
    for size in SIZES:
        with tempfile.TemporaryDirectory() as name:
            folder = photo_folder(Path(name), side=size, count=PHOTOS, images=arguments.images)
            results.append(measure_apply_speed(folder, size=size, runs=runs, batch_size=batch_size))
    table = Table("image size", "way", "images/s per thread", "quartiles, ms per image", "times PIL decoded")
    for result in results:
        for way, timing in result.timings.items():
            low, high = (1e3 * value / result.images for value in (timing.low, timing.high))
            share = result.images_per_second(way) / result.images_per_second(BASELINE)
            speed = f"{result.images_per_second(way):.0f}"
            table.add_row(str(result.size), way, speed, f"{low:.2f} to {high:.2f}", f"{share:.1f}")
    Console().print(table)
    if arguments.json:
        command = "python -m benchmarks.speed.augmenting --json OUT" + (" --quick" if arguments.quick else "")
        write_json(
            arguments.json,
            benchmark="apply_speed",
            command=command,
            results=[result.as_json() for result in results],
        )


if __name__ == "__main__":
    main()
