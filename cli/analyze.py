"""``lpld-labels analyze``: diversity of image folders, and distance from real images."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from lpld_core.options import NetworkOptions
from lpld_labels.format.limits import MAX_SEED
from lpld_labels.settings import Setting

from .console import print_json, stdout_console
from .options import FOLDER, call_options, json_option
from .progress import progress_bar

if TYPE_CHECKING:
    from lpld_core.analysis import Analysis


@dataclass(frozen=True, kw_only=True)
class Options(NetworkOptions):
    """Options of analyze."""

    real_per_class: Annotated[int, Setting("Number of real images to sample per class.", ge=2)] = 200
    seed: Annotated[int, Setting("Seed for sampling real images.", ge=0, le=MAX_SEED)] = 0
    batch_size: Annotated[int, Setting("Number of images per forward pass.", ge=1)] = 128


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, type=FOLDER)
@click.option("--real", type=FOLDER, required=True, help="Image folder of real images.")
@call_options(Options)
@json_option
def command(folders: tuple[Path, ...], real: Path, as_json: bool, **given: Any) -> None:
    """Compare image folders with real images through the features of a pretrained teacher.

    \b
    similarity  cosine similarity in a class: mean over pairs, then over classes (+/- std).
                Lower is more diverse.
    with self   the same, but each image is also paired with itself. The paper's figures for
                ImageNet-1K at 50 images per class seem to be this: .841 (SRe2L), .816 (CDA),
                .796 (LPLD) and .695 (real images)
    MMD^2       distance between feature distributions, with a Gaussian kernel whose bandwidth is
                the median distance between real images. Lower is closer to real images.

    \b
    Examples:
      lpld-labels analyze syn/lpld syn/sre2l --real imagenet/val --teacher resnet18
      lpld-labels analyze syn/lpld syn/sre2l --real small/train \\
          --teacher small-resnet10:width=32,stem_stride=2 --teacher-weights teacher.safetensors
    """
    options = Options(**given)
    options.prepare_machine()
    from lpld_core.analysis import analyse
    from lpld_core.images import RealFolder

    real_images = RealFolder.open(real)
    opened = [(path.resolve().name, RealFolder.open(path)) for path in folders]
    model = options.load(classes=real_images.classes)
    with progress_bar("reading features") as progress:
        analysis = analyse(
            model,
            opened,
            real_images,
            real_per_class=options.real_per_class,
            batch_size=options.batch_size,
            seed=options.seed,
            progress=progress,
        )
    if as_json:
        found = [asdict(folder) for folder in analysis.folders]
        print_json({"teacher": options.teacher, "bandwidth": analysis.bandwidth, "folders": found})
    else:
        _show(analysis)


def _show(analysis: Analysis) -> None:
    from rich.table import Table

    table = Table(
        caption="similarity: lower is more diverse; MMD^2: lower is closer to the real images\n"
        f"(Gaussian kernel of bandwidth {analysis.bandwidth:.4g})",
        caption_justify="left",
    )
    for heading in ("folder", "images", "similarity", "with self", "MMD^2"):
        table.add_column(heading, justify="left" if heading == "folder" else "right")
    for folder in analysis.folders:
        similarity = folder.similarity
        table.add_row(
            folder.name,
            str(folder.images),
            f"{similarity.mean:.3f} +/- {similarity.std:.3f}",
            f"{similarity.with_self:.3f}",
            "" if folder.mmd_squared is None else f"{folder.mmd_squared:.4f}",
        )
    stdout_console().print(table)
