"""Settings of the published experiments, by name (sources: docs/method.md).

Without a name, ImageNet-1K's settings hold, but label batches are drawn without replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lpld_core.settings import BuildSettings, TeacherChoice
from lpld_core.train.settings import TrainSettings
from lpld_labels.errors import InvalidArgumentError


@dataclass(frozen=True, kw_only=True)
class ExperimentPreset:
    """The settings of one experiment, for `build` and for `train`."""

    label: BuildSettings
    train: TrainSettings


EXPERIMENT_PRESETS: Mapping[str, ExperimentPreset] = {
    "imagenet1k": ExperimentPreset(
        label=BuildSettings(mix="cutmix"), train=TrainSettings(sampling="batches")
    ),
    "tiny": ExperimentPreset(
        label=BuildSettings(epochs=100, batch_size=64),
        train=TrainSettings(
            sampling="batches",
            epochs=100,
            scale_by_t2=True,
            optimizer="sgd",
            learning_rate=0.2,
            weight_decay=1e-4,
            warmup_epochs=5,
        ),
    ),
    "imagenet21k": ExperimentPreset(
        label=BuildSettings(batch_size=32, flip=False, cutout_fraction=0.5),
        train=TrainSettings(sampling="batches", learning_rate=0.002, label_smoothing=0.2),
    ),
    # The paper's "Ours+": labels by an ensemble, and G-VBSM's loss.
    "imagenet1k-plus": ExperimentPreset(
        label=BuildSettings(
            mix="cutmix",
            teachers=tuple(
                TeacherChoice(name=name)
                for name in ("resnet18", "mobilenet_v2", "efficientnet_b0", "shufflenet_v2_x0_5")
            ),
        ),
        train=TrainSettings(sampling="batches", loss="mse+gt"),
    ),
    # LPQLD: the label's temperature falls, the student's follows it; top-k labels have no tail.
    "lpqld": ExperimentPreset(
        label=BuildSettings(mix="cutmix"),
        train=TrainSettings(
            sampling="shuffled", temperature_schedule="step", student_temperature="calibrated", tail="none"
        ),
    ),
}
WITHOUT_PRESET = ExperimentPreset(label=EXPERIMENT_PRESETS["imagenet1k"].label, train=TrainSettings())


def preset_named(name: str | None) -> ExperimentPreset:
    """Return a preset, or the settings without one."""
    if name is None:
        return WITHOUT_PRESET
    if name not in EXPERIMENT_PRESETS:
        known = ", ".join(EXPERIMENT_PRESETS)
        raise InvalidArgumentError("unknown preset", expected=f"one of {known}", got=name)
    return EXPERIMENT_PRESETS[name]
