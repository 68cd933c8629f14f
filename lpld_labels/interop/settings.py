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
    """Facts that a label folder does not contain. None: infer from the data, else assume a default."""

    torch_era: Annotated[
        Literal["auto", "new", "old"],
        Setting(
            "SRe2L: PyTorch that drew the image ids, >= 1.11 (new) or older; auto infers it from the labels."
        ),
    ] = "auto"
    sampler_seed: Annotated[int, Setting("SRe2L: seed the image ids were drawn with.")] = DEFAULT_SAMPLER_SEED
    classes: Annotated[
        int | None, Setting("Number of classes; top-k labels do not store it.", ge=2, le=MAX_CLASSES)
    ] = None
    output_size: Annotated[
        int | None, Setting("Side of a view in pixels; no format stores it.", ge=1, le=MAX_SIDE)
    ] = None
    resize: Annotated[
        Literal["torch", "pil", "pil_bicubic"] | None,
        Setting("Resize code of the views  [default: the published program's]."),
    ] = None
    batch_size: Annotated[int, Setting("FKD: images in a batch.", ge=1, le=MAX_BATCH_SIZE)] = 128
    teachers: Annotated[
        tuple[str, ...],
        Setting("Teacher names to record in the pool; G-VBSM: all of them, in order."),
    ] = ()
    mean: Annotated[
        tuple[float, ...] | None, Setting("Normalisation mean, if not the published program's.")
    ] = None
    std: Annotated[
        tuple[float, ...] | None, Setting("Normalisation std, if not the published program's.")
    ] = None
    ensemble: Annotated[
        Literal["average", "norm-scaled"] | None,
        Setting("G-VBSM: how the teachers' logits were combined  [default: the published branch's]."),
    ] = None
    temperature: Annotated[
        float, Setting("FKD: softmax temperature of the stored probabilities (its --temp).", gt=0)
    ] = 1.0
    allow_extra_images: Annotated[
        bool, Setting("Accept an image folder with images that have no labels.")
    ] = False

    def __post_init__(self) -> None:
        check_settings(self)
        if not -(2**63) <= self.sampler_seed <= MAX_SEED:
            raise wrong_setting("sampler_seed", "a seed of PyTorch's", self.sampler_seed)
        if not all(is_text(name) for name in self.teachers):
            raise wrong_setting("teachers", "names that are text", self.teachers)
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
    """Return settings and results of the import in a pool's lineage; empty without an import."""
    found: dict[str, Any] = {}
    for step in header.lineage:
        if step.operation == "import":
            found |= {**step.parameters.get("settings", {}), **step.parameters}
    return found
