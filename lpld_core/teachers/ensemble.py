"""Ensembles: scale logits to a common norm, so that no teacher dominates, then average them (G-VBSM)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lpld_core.device import autocast, to_device
from lpld_core.settings import Precision, TeacherChoice
from lpld_core.teachers.teacher import LoadedTeacher, load_teacher
from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import ENSEMBLE_WORDS, EnsembleRule, Teacher
from lpld_labels.format.random_streams import Stream, keyed_generator
from lpld_labels.render import normalise

_PROBE_IMAGES, _PROBE_CLASSES, _PROBE_BLOCK = 4, 32, 8


def load_ensemble(
    choices: Sequence[TeacherChoice],
    *,
    classes: int | None = None,
    device: str | torch.device = "cpu",
    amp: Precision = "off",
) -> Ensemble:
    """Load the chosen teachers. classes: required class count of every teacher; None: any."""
    loaded = [load_teacher(**vars(choice), classes=classes, device=device) for choice in choices]
    return Ensemble(loaded, amp=amp)


@dataclass(frozen=True, eq=False)
class Ensemble:
    """One or more teachers that label the same pixels, each with its own normalisation."""

    teachers: Sequence[LoadedTeacher]
    amp: Precision = "off"
    combine: EnsembleRule = "norm-scaled"

    def __post_init__(self) -> None:
        if not self.teachers:
            raise InvalidArgumentError("no teacher", expected="at least one")
        if len({teacher.classes for teacher in self.teachers}) != 1:
            counts = ", ".join(f"{teacher.description.name}: {teacher.classes}" for teacher in self.teachers)
            raise InvalidArgumentError("teachers differ in their number of classes", got=counts)

    @property
    def classes(self) -> int:
        return self.teachers[0].classes

    @property
    def device(self) -> torch.device:
        return next(self.teachers[0].model.parameters()).device

    def on(self, device: str | torch.device) -> Ensemble:
        return replace(self, teachers=[teacher.on(device) for teacher in self.teachers])

    @property
    def input_size(self) -> tuple[int, int]:
        """Height and width of views; refuse teachers that expect different sizes."""
        if len({teacher.input_size for teacher in self.teachers}) != 1:
            sizes = ", ".join(f"{t.description.name}: {t.input_size}" for t in self.teachers)
            raise InvalidArgumentError(
                "teachers expect different image sizes", got=sizes, hint="choose one size for all"
            )
        return self.teachers[0].input_size

    @property
    def descriptions(self) -> tuple[Teacher, ...]:
        return tuple(teacher.description for teacher in self.teachers)

    @property
    def rule(self) -> str | None:
        return ENSEMBLE_WORDS[self.combine] if len(self.teachers) > 1 else None

    def logits(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return logits float32 [B, C] on the CPU. pixels: uint8 or float32 [B, 3, H, W], values 0..255."""
        return self.outputs(pixels).cpu()

    @torch.inference_mode()
    def outputs(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return what `logits` returns, but on the teachers' device, without waiting for the result."""
        device = self.device
        pixels = to_device(pixels, device)
        with autocast(device, self.amp):
            outputs = [t.model(normalise(pixels, t.mean, t.std)).float() for t in self.teachers]
        if self.combine == "average":
            return torch.stack(outputs).mean(dim=0)
        return normalised_mean(outputs)

    def probe(self, size: tuple[int, int]) -> list[float]:
        """Return logits for random images. size: (height, width). See lpld_labels/format/probe.py."""
        height, width = size
        draws = keyed_generator(0, Stream.PROBE)
        noise = draws.integers(0, 128, (_PROBE_IMAGES, 3, height, width), np.uint8)
        coarse = noise[:, :, ::_PROBE_BLOCK, ::_PROBE_BLOCK].repeat(_PROBE_BLOCK, 2).repeat(_PROBE_BLOCK, 3)
        pixels = torch.from_numpy(noise // 2 + coarse[:, :, :height, :width])
        # JSON has no NaN or infinity, which half precision may give for noise.
        outputs = self.logits(pixels)[:, :_PROBE_CLASSES].nan_to_num()
        return [float(f"{value:.5g}") for value in outputs.flatten().tolist()]


def normalised_mean(outputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Scale all outputs [B, C] to their mean Frobenius norm and average; return a single output unchanged."""
    if len(outputs) == 1:
        return outputs[0]
    norms = torch.stack([torch.linalg.matrix_norm(output) for output in outputs])
    # All-zero logits stay zero.
    scales = torch.where(norms > 0, norms.mean() / norms, 0)
    scaled = [output * scale for output, scale in zip(outputs, scales, strict=True)]
    return torch.stack(scaled).mean(dim=0)
