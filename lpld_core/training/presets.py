"""Settings of the published experiments, by name.

From the paper's appendix ("Hyperparameter Settings"); what it leaves open (weight decay on
ImageNet-1K, temperature, cut-out size, no flip on ImageNet-21K-P) is as in the programs it used.
Crops are RandomResizedCrop of scale 0.08 to 1 everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import Augmentation

Loss = Literal["kl", "mse+gt"]
Optimizer = Literal["adamw", "sgd"]
Schedule = Literal["cosine", "smoothed-cosine", "constant"]
LOSSES: tuple[Loss, ...] = ("kl", "mse+gt")
OPTIMIZERS: tuple[Optimizer, ...] = ("adamw", "sgd")
SCHEDULES: tuple[Schedule, ...] = ("cosine", "smoothed-cosine", "constant")

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
class TrainRecipe:
    """How a student is trained from a pool.

    epochs: step budget, in passes over the images. batch_size is the pool's own.
    temperature, scale_by_t2: of the KL loss; the latter multiplies it by temperature squared.
    gamma: weight of the ground truth's cross-entropy in mse+gt.
    label_smoothing: share of the target that is spread evenly over all classes.
    learning_rate, weight_decay, momentum (SGD): as PyTorch defines them.
    warm_up_epochs, warm_up_from: the rate rises linearly from warm_up_from x learning_rate.
    """

    epochs: int = 300
    loss: Loss = "kl"
    temperature: float = 20.0
    scale_by_t2: bool = False
    gamma: float = 0.1
    label_smoothing: float = 0.0
    optimizer: Optimizer = "adamw"
    learning_rate: float = 0.001
    weight_decay: float = 0.01
    momentum: float = 0.9
    schedule: Schedule = "cosine"
    warm_up_epochs: float = 0.0
    warm_up_from: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Preset:
    """The settings of one experiment, for `build` and for `train`."""

    label: LabelRecipe
    train: TrainRecipe


PRESETS: Mapping[str, Preset] = {
    "imagenet1k": Preset(label=LabelRecipe(mix="cutmix"), train=TrainRecipe()),
    "tiny": Preset(
        label=LabelRecipe(epochs=100, batch_size=64),
        train=TrainRecipe(
            epochs=100,
            scale_by_t2=True,
            optimizer="sgd",
            learning_rate=0.2,
            weight_decay=1e-4,
            warm_up_epochs=5,
        ),
    ),
    "imagenet21k": Preset(
        label=LabelRecipe(batch_size=32, flip_probability=None, cutout_fraction=0.5),
        train=TrainRecipe(learning_rate=0.002, label_smoothing=0.2),
    ),
    # The paper's "Ours+": labels by an ensemble, and G-VBSM's loss.
    "imagenet1k-plus": Preset(
        label=LabelRecipe(
            mix="cutmix",
            teachers=("resnet18", "mobilenet_v2", "efficientnet_b0", "shufflenet_v2_x0_5"),
        ),
        train=TrainRecipe(loss="mse+gt"),
    ),
}
DEFAULT_PRESET = "imagenet1k"


def preset_named(name: str) -> Preset:
    """Return a preset; unknown names are refused with the known ones."""
    if name not in PRESETS:
        raise InvalidArgumentError("unknown preset", expected=f"one of {', '.join(PRESETS)}", got=name)
    return PRESETS[name]
