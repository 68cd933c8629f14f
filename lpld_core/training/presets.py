"""Settings of the published experiments, by name.

From the paper's appendix ("Hyperparameter Settings"), and from its programs where they say more or
otherwise (docs/method.md lists what and why). `TrainSettings` alone is ImageNet-1K's.
Crops are RandomResizedCrop of scale 0.08 to 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lpld_core.training.settings import TrainSettings
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation

CUTMIX_ALPHA = 1.0
MIXUP_ALPHA = 0.8
MIX_ALPHAS: Mapping[str, float | None] = {"none": None, "cutmix": CUTMIX_ALPHA, "mixup": MIXUP_ALPHA}
"""Both parameters of the Beta distribution that mixing strengths are drawn from."""


@dataclass(frozen=True, kw_only=True)
class LabelRecipe:
    """How images are labelled; fields not named here are those of `Augmentation`.

    epochs, batch_size: how many views of each image, and how many views mix and are stored together.
    teachers: network names, used where none is asked for.
    """

    epochs: int = 300
    batch_size: int = 128
    crop_scale: tuple[float, float] = (0.08, 1.0)
    flip_probability: float | None = 0.5
    mix: str = "none"
    cutout_fraction: float | None = None
    patch_grid: int | None = None
    resize: str = "torch"
    teachers: tuple[str, ...] = ()

    def augmentation(self, size: tuple[int, int]) -> Augmentation:
        """Return what a pool records, for views of this height and width."""
        if self.mix not in MIX_ALPHAS:
            raise InvalidArgumentError(
                "unknown mix", expected=f"one of {', '.join(MIX_ALPHAS)}", got=self.mix
            )
        return Augmentation(
            output_height=size[0],
            output_width=size[1],
            resize=self.resize,
            crop_scale=self.crop_scale,
            crop_ratio=(3 / 4, 4 / 3),
            flip_probability=self.flip_probability,
            mix=self.mix,
            mix_alpha=MIX_ALPHAS[self.mix],
            cutout_fraction=self.cutout_fraction,
            patch_grid=self.patch_grid,
        )


@dataclass(frozen=True, kw_only=True)
class ExperimentPreset:
    """The settings of one experiment, for `build` and for `train`."""

    label: LabelRecipe
    train: TrainSettings


EXPERIMENT_PRESETS: Mapping[str, ExperimentPreset] = {
    "imagenet1k": ExperimentPreset(label=LabelRecipe(mix="cutmix"), train=TrainSettings()),
    "tiny": ExperimentPreset(
        label=LabelRecipe(epochs=100, batch_size=64),
        train=TrainSettings(
            epochs=100,
            scale_by_t2=True,
            optimizer="sgd",
            learning_rate=0.2,
            weight_decay=1e-4,
            warmup_epochs=5,
        ),
    ),
    "imagenet21k": ExperimentPreset(
        label=LabelRecipe(batch_size=32, flip_probability=None, cutout_fraction=0.5),
        train=TrainSettings(learning_rate=0.002, label_smoothing=0.2),
    ),
    # The paper's "Ours+": labels by an ensemble, and G-VBSM's loss.
    "imagenet1k-plus": ExperimentPreset(
        label=LabelRecipe(
            mix="cutmix",
            teachers=("resnet18", "mobilenet_v2", "efficientnet_b0", "shufflenet_v2_x0_5"),
        ),
        train=TrainSettings(loss="mse+gt"),
    ),
    # LPQLD: the label's temperature falls, the student's follows it; top-k labels have no tail.
    "lpqld": ExperimentPreset(
        label=LabelRecipe(mix="cutmix"),
        train=TrainSettings(
            policy="shuffled", temperature_schedule="step", student_temperature="calibrated", tail="none"
        ),
    ),
}
DEFAULT_PRESET = "imagenet1k"


def preset_named(name: str) -> ExperimentPreset:
    """Return a preset; unknown names are refused with the known ones."""
    if name not in EXPERIMENT_PRESETS:
        known = ", ".join(EXPERIMENT_PRESETS)
        raise InvalidArgumentError("unknown preset", expected=f"one of {known}", got=name)
    return EXPERIMENT_PRESETS[name]
