"""Several teachers as one: logits brought to a common size, then averaged (G-VBSM).

Each teacher's [B, C] logits are scaled so that their Frobenius norm becomes the mean of all
teachers' norms. Without that, the teacher with the largest logits would decide alone. Pools labelled
elsewhere may hold plain averages: checking them needs that rule too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lpld_core.settings import TeacherChoice
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import ENSEMBLE_WORDS, EnsembleRule, Teacher
from lpld_labels.render import normalise


def load_ensemble(
    choices: Sequence[TeacherChoice],
    *,
    classes: int | None = None,
    device: str | torch.device = "cpu",
    amp: bool = False,
) -> Ensemble:
    """Load the chosen teachers. classes: refuse teachers with another class count."""
    teachers = [
        load_teacher(
            choice.name,
            weights=choice.weights,
            classes=classes,
            input_size=choice.input_size,
            mean=choice.mean,
            std=choice.std,
            device=device,
        )
        for choice in choices
    ]
    return Ensemble(teachers, amp=amp)


class Ensemble:
    """One or more teachers that label the same pixels, each with its own normalisation.

    A single teacher's logits are passed on untouched. amp: autocast the forward passes.
    combine: how the logits of several become one.
    """

    def __init__(
        self,
        teachers: Sequence[LoadedTeacher],
        *,
        amp: bool = False,
        combine: EnsembleRule = "norm-scaled",
    ) -> None:
        if not teachers:
            raise InvalidArgumentError("no teacher", expected="at least one")
        if len({teacher.classes for teacher in teachers}) != 1:
            counts = ", ".join(f"{teacher.description.name}: {teacher.classes}" for teacher in teachers)
            raise InvalidArgumentError("teachers differ in their number of classes", got=counts)
        self.teachers = tuple(teachers)
        self.amp = amp
        self.combine: EnsembleRule = combine

    @property
    def classes(self) -> int:
        """Number of logits per image, C."""
        return self.teachers[0].classes

    @property
    def device(self) -> torch.device:
        """Where the teachers are."""
        return next(self.teachers[0].model.parameters()).device

    def on(self, device: str | torch.device) -> Ensemble:
        """Return these teachers on a device; those that are there already are the same ones."""
        moved = [teacher.on(device) for teacher in self.teachers]
        return Ensemble(moved, amp=self.amp, combine=self.combine)

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width that all teachers expect; refuse teachers that disagree."""
        if len({teacher.input_size for teacher in self.teachers}) != 1:
            sizes = ", ".join(f"{t.description.name}: {t.input_size}" for t in self.teachers)
            raise InvalidArgumentError(
                "teachers expect different image sizes", got=sizes, hint="choose one size for all"
            )
        return self.teachers[0].input_size

    @property
    def descriptions(self) -> tuple[Teacher, ...]:
        """What a pool records about its teachers."""
        return tuple(teacher.description for teacher in self.teachers)

    @property
    def rule(self) -> str | None:
        """How several outputs become one label; None for a single teacher."""
        return ENSEMBLE_WORDS[self.combine] if len(self.teachers) > 1 else None

    @torch.inference_mode()
    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Label pixels, uint8 or float32 [B, 3, H, W] with values 0..255: float32 [B, C] on the CPU."""
        device = self.device
        pixels = pixels.to(device, non_blocking=True)
        with torch.autocast(device.type, enabled=self.amp):
            outputs = [t.model(normalise(pixels, t.mean, t.std)).float() for t in self.teachers]
        if self.combine == "average":
            return torch.stack(outputs).mean(dim=0).cpu()
        return normalised_mean(outputs).cpu()


def normalised_mean(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Scale each [B, C] to the mean Frobenius norm and average; one tensor comes back as it is."""
    if len(outputs) == 1:
        return outputs[0]
    norms = torch.stack([torch.linalg.matrix_norm(output) for output in outputs])
    # All-zero logits (norm 0) carry nothing and stay zero.
    scales = torch.where(norms > 0, norms.mean() / norms, 0)
    scaled = [output * scale for output, scale in zip(outputs, scales, strict=True)]
    return torch.stack(scaled).mean(dim=0)
