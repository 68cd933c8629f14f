"""Settings of imports and exports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.limits import MAX_BATCH_SIZE, MAX_CLASSES, MAX_SEED, MAX_SIDE
from lpld_labels.format.strict_json import is_text
from lpld_labels.settings import Setting, check_settings, wrong_setting

if TYPE_CHECKING:
    from lpld_labels.format.manifest import PoolHeader

DEFAULT_SAMPLER_SEED = 42


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Facts that a label folder does not contain. None: infer the fact from the data, or assume a default."""

    torch_era: Annotated[
        Literal["auto", "new", "old"],
        Setting(
            "SRe2L: PyTorch version that drew the images: new (>= 1.11) or old; auto infers it from labels."
        ),
    ] = "auto"
    sampler_seed: Annotated[int, Setting("SRe2L: seed of the image sampler.")] = DEFAULT_SAMPLER_SEED
    classes: Annotated[
        int | None, Setting("Number of classes; top-k labels do not store it.", ge=2, le=MAX_CLASSES)
    ] = None
    output_size: Annotated[
        int | None, Setting("Side of a view in pixels; no format stores it.", ge=1, le=MAX_SIDE)
    ] = None
    resize: Annotated[
        Literal["torch", "pil", "pil_bicubic"] | None,
        Setting("How the program resized views.  [default: as published]"),
    ] = None
    batch_size: Annotated[int, Setting("FKD: batch size of the pool.", ge=1, le=MAX_BATCH_SIZE)] = 128
    teachers: Annotated[
        tuple[str, ...],
        Setting("Names of the teachers, recorded in the pool. G-VBSM: name all teachers, in order."),
    ] = ()
    mean: Annotated[
        tuple[float, ...] | None, Setting("Mean for normalising pixels.  [default: the published program's]")
    ] = None
    std: Annotated[
        tuple[float, ...] | None, Setting("Std for normalising pixels.  [default: the published program's]")
    ] = None
    ensemble: Annotated[
        Literal["average", "norm-scaled"] | None,
        Setting("G-VBSM: how the teachers' logits were combined.  [default: as in its published code]"),
    ] = None
    temperature: Annotated[
        float | None,
        Setting("FKD, HALD: softmax temperature of the stored probabilities.  [default: 1, HALD 20]", gt=0),
    ] = None
    crops: Annotated[
        Literal["labelled", "replayed"],
        Setting("HALD: crops that the teacher saw, or those of HALD's trainer, which rounds pixels down."),
    ] = "labelled"
    drop_weights: Annotated[
        bool, Setting("WMDD: Drop the weights of rows, for which pools have no place.")
    ] = False
    allow_extra_images: Annotated[
        bool, Setting("Accept an image folder with images that have no labels.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if not -(2**63) <= self.sampler_seed <= MAX_SEED:
            raise wrong_setting("sampler_seed", "a seed that PyTorch accepts", self.sampler_seed)
        if not all(is_text(name) for name in self.teachers):
            raise wrong_setting("teachers", "valid UTF-8 names", self.teachers)
        if self.mean is not None and self.std is not None:
            from lpld_labels.format.manifest import require_normalisation

            require_normalisation(self.mean, self.std)
        elif self.mean is not None or self.std is not None:
            raise InvalidArgumentError("the normalisation is incomplete", hint="give both mean and std")


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Settings of an export."""

    top_k: Annotated[
        int | None, Setting("LPQLD: keep only the K largest labels of a row.", ge=1, le=MAX_CLASSES)
    ] = None


def import_parameters(header: PoolHeader) -> dict[str, Any]:
    """Return the settings and results of the import step in a lineage; {} if the pool was not imported."""
    found: dict[str, Any] = {}
    for step in header.lineage:
        if step.operation == "import":
            found |= {**step.parameters.get("settings", {}), **step.parameters}
    return found
