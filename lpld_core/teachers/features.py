"""Features of a classifier: what its last linear layer takes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.errors import InvalidArgumentError


def classifier_layer(teacher: LoadedTeacher) -> nn.Linear:
    """Return the linear layer that gives the logits; refuse a network without one."""
    heads = [
        module
        for module in teacher.model.modules()
        if isinstance(module, nn.Linear) and module.out_features == teacher.classes
    ]
    if not heads:
        raise InvalidArgumentError(
            "cannot tell what this network's features are",
            where=teacher.description.name,
            expected=f"a linear layer with {teacher.classes} outputs at its end",
            hint="use a network such as a ResNet",
        )
    return heads[-1]


@torch.inference_mode()
def extract_features(
    teacher: LoadedTeacher,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return features float32 [N, dimensions] and labels int64 [N] of batches of normalised images.

    progress: called with the number of images done after each batch.
    """
    head = classifier_layer(teacher)
    taken: list[Tensor] = []
    labels: list[Tensor] = []

    def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        taken.append(inputs[0].float().cpu())

    handle = head.register_forward_pre_hook(before)
    done = 0
    try:
        for images, targets in batches:
            teacher.model(images.to(head.weight.device))
            labels.append(targets)
            done += len(targets)
            if progress is not None:
                progress(done)
    finally:
        handle.remove()
    return torch.cat(taken), torch.cat(labels)
