"""Settings of a build. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from lpld_core.settings import Part, TeacherChoice, ViewSettings
from lpld_labels.format.limits import MAX_INDEX, MAX_SEED
from lpld_labels.settings import Setting

Replayer = Literal["sre2l", "lpld"]
Views = Literal["stored", "drawn"]


@dataclass(frozen=True, kw_only=True)
class BuildSettings(ViewSettings):
    """How an image folder is labelled. The defaults are the paper's for ImageNet-1K, without its mixing.

    teachers: several are an ensemble; none if the caller passes them loaded.
    """

    epochs: Annotated[int, Setting("Views of every image, before pruning.", ge=1, le=MAX_INDEX + 1)] = 300
    ratio: Annotated[
        float, Setting("Label only the 1/RATIO of the batches that random pruning would keep.", ge=1)
    ] = 1.0
    seed: Annotated[int, Setting("All views and their pruning follow from it.", ge=0, le=MAX_SEED)] = 0
    replayable_by: Annotated[
        Replayer | None,
        Setting(
            "Take images in the order that this program's trainer draws, and resize with Pillow as it does: "
            "it then replays the exported pool exactly."
        ),
    ] = None

    teachers: tuple[TeacherChoice, ...] = ()
    fewer_classes: Annotated[
        bool,
        Setting("The folder may have fewer classes than the teacher; class numbers are the folder's."),
    ] = False
    codec: Annotated[
        str,
        Setting("How labels are stored: f16, f16:plain, f32, int8, topk:50 ... (for klt, encode the pool)."),
    ] = "f16"
    views: Annotated[
        Views, Setting("Keep the views in files, or let readers draw them again from the seed: smaller.")
    ] = "stored"
    pack: Annotated[bool, Setting("Put the images into the pool too, as copy --pack does.")] = False

    device: Annotated[str, Setting("cpu, cuda, cuda:1, mps ...")] = "cpu"
    amp: Annotated[bool, Setting("Mixed precision: faster on GPUs, no longer bit-identical.")] = False
    threads: Annotated[int | None, Setting("CPU threads per process.  [default: all, shared out]", ge=1)] = (
        None
    )
    workers: Annotated[int, Setting("Threads that prepare pixels.", option=False, ge=1)] = 1
    image_cache: Annotated[
        Path | None,
        Setting("Directory for decoded images, shared by processes and runs.  [default: in memory]"),
    ] = None
    part: Annotated[Part | None, Setting("Label one share; the last one publishes. See the examples.")] = None
