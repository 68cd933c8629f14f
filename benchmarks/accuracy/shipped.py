"""The teacher itself as the label store: its weights are shipped, and every epoch is labelled anew.

A pool of all epochs' views, labelled by the teacher that the stored weights decode to and replayed epoch by
epoch, gives a student what labelling during training would give it. Only the weights count as bytes.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from safetensors.torch import save

from lpld_core.networks.weights import Tensors, weights_digest
from lpld_core.teachers.teacher import LoadedTeacher

_SCALE = ".scale"


def shipped(teacher: LoadedTeacher, form: str) -> tuple[LoadedTeacher, int]:
    """Return the teacher after a round trip through stored weights, and the bytes of their file."""
    stored = _stored(teacher.model.state_dict(), form)
    model = copy.deepcopy(teacher.model)
    model.load_state_dict(_restored(stored), strict=False)
    description = replace(teacher.description, weights_digest=weights_digest(model))
    return replace(teacher, model=model, description=description), len(save(stored))


def _stored(weights: Tensors, form: str) -> Tensors:
    """Return the tensors to store. Vectors (biases, BatchNorm) keep float32: they are few, and delicate."""
    found: Tensors = {}
    for name, value in weights.items():
        if not value.is_floating_point():
            continue  # BatchNorm counters decide no label.
        if value.ndim < 2:
            found[name] = value.contiguous()
        elif form == "teacher-f16":
            found[name] = value.half().contiguous()
        else:
            # A scale per output channel, as is usual.
            scale = value.abs().amax(dim=tuple(range(1, value.ndim)), keepdim=True).clamp(min=1e-12) / 127
            found[name] = (value / scale).round().to(torch.int8).contiguous()
            found[name + _SCALE] = scale.contiguous()
    return found


def _restored(stored: Tensors) -> Tensors:
    return {
        name: value.float() * stored.get(name + _SCALE, torch.ones(()))
        for name, value in stored.items()
        if not name.endswith(_SCALE)
    }
