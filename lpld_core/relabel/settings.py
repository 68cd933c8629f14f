"""All that a build is told, in one object. An option of the command line is a field here.

What decides labels is in the pool's header or in `Making` (growing.py), on which all builds of a pool agree;
tests/lpld_core/test_build_settings.py says of each field which it is.

Nothing here needs torch, so the command line can list choices without loading it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lpld_core.settings import Part, TeacherChoice, ViewSettings
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_BATCH_SIZE, MAX_SEED
from lpld_labels.format.records import MAX_INDEX
from lpld_labels.format.schema import Views

Replayer = Literal["sre2l", "lpld"]


@dataclass(frozen=True, kw_only=True)
class BuildSettings(ViewSettings):
    """How an image folder is labelled. The defaults are the paper's for ImageNet-1K, without its mixing.

    epochs: views of every image, at ratio 1. seed: all views and their pruning follow from it.
    ratio: label only the batches that random pruning by this ratio would keep.
    replayable_by: program whose image order to follow, so that an exported folder suits it (see
        replayable.py); None to draw the order from the seed.

    teachers: who labels; several are an ensemble. Empty where the caller brings them loaded.
    fewer_classes: the folder may have fewer classes than the teachers.
    codec: a spelling of `codec_named`. views: whether the pool keeps its views.
    pack: whether it carries its images.

    device, amp, threads: of torch, in each process; threads None leaves them as they are.
    workers: threads that prepare pixels.
    image_cache: directory for decoded images that processes share; None keeps them in memory.
    part: label this share only, and do not publish. seal_seconds: work that a crash may cost;
        None for the rule of all commands.
    """

    epochs: int = 300
    ratio: float = 1.0
    seed: int = 0
    replayable_by: Replayer | None = None

    teachers: tuple[TeacherChoice, ...] = ()
    fewer_classes: bool = False
    codec: str = "f16"
    views: Views = "stored"
    pack: bool = False

    device: str = "cpu"
    amp: bool = False
    threads: int | None = None
    workers: int = 1
    image_cache: Path | None = None
    part: Part | None = None
    seal_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, least, most in (
            ("epochs", 1, MAX_INDEX + 1),
            ("batch_size", 1, MAX_BATCH_SIZE),
            ("seed", 0, MAX_SEED),
            ("workers", 1, math.inf),
        ):
            value = getattr(self, name)
            if not least <= value <= most:
                expected = f"at least {least}" if most == math.inf else f"{least} to {most}"
                raise InvalidArgumentError(f"{name.replace('_', ' ')} is wrong", expected=expected, got=value)
