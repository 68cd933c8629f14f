"""Pages about image folders: their images class by class, and how diverse they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image

from lpld_core.analysis import Analysis
from lpld_core.images import RealFolder
from lpld_core.recover.folder import evenly
from lpld_labels.inspect.charts import Bar, Chart, bars
from lpld_labels.inspect.page import jpeg_uri, render_page

_CLASSES = 20
_PICTURES = 600
_IMAGES = 10
_SIDE = 96
_QUALITY = 85
Folders = Sequence[tuple[str, RealFolder]]


def analysis_page(analysis: Analysis, folders: Folders) -> bytes:
    """Return folders side by side: similarity, MMD, and their images. folders: as analysed, real last."""
    return render_page(
        "images.html",
        title="Image folders side by side",
        lead=f"Features of one model; Gaussian kernel of bandwidth {analysis.bandwidth:.4g}.",
        charts=_charts(analysis),
        settings=[],
        **_sheets(folders),
    )


def _sheets(folders: Folders) -> dict[str, Any]:
    """Return some classes, each with some images of every folder, below each other."""
    names = folders[0][1].class_names
    shown = evenly(len(names), min(_CLASSES, max(_PICTURES // (_IMAGES * len(folders)), 1)))
    sheets = [(names[n], [(name, _pictures(folder, n)) for name, folder in folders]) for n in shown]
    says = f"{len(shown)} of {len(names)} classes, at most {_IMAGES} images of each folder."
    return {"sheets": sheets, "says": says}


def _pictures(folder: RealFolder, label: int) -> list[tuple[str, str]]:
    rows = folder.rows_of(label)
    found = []
    for place in evenly(len(rows), _IMAGES) if len(rows) else ():
        row = int(rows[place])
        picture = Image.fromarray(folder.decode(row))
        picture.thumbnail((_SIDE, _SIDE))
        found.append((jpeg_uri(picture, _QUALITY), folder.paths[row]))
    return found


def _charts(analysis: Analysis) -> list[Chart]:
    similar = [
        Bar(
            label=folder.name,
            value=folder.similarity.mean,
            text=f"{folder.similarity.mean:.3f} +/- {folder.similarity.std:.3f}",
            spread=folder.similarity.std,
            colour=number,
            more=(f"{folder.similarity.with_self:.3f}", f"{folder.images:,}"),
        )
        for number, folder in enumerate(analysis.folders)
    ]
    distant = [
        Bar(label=folder.name, value=folder.mmd_squared, text=f"{folder.mmd_squared:.4f}", colour=number)
        for number, folder in enumerate(analysis.folders)
        if folder.mmd_squared is not None
    ]
    return [
        bars(
            "Similarity within classes",
            "Mean cosine of two images of a class, and its spread over classes; lower is more diverse.",
            similar,
            headers=("similarity", "with self", "images"),
        ),
        bars(
            "Distance to real images",
            "MMD squared of the features; lower is closer to the real images.",
            distant,
            headers=("MMD squared",),
        ),
    ]
