"""BatchNorm over the rows of all processes of a training run.

torch's own SyncBatchNorm serves GPUs only; on other devices this one takes its place. Both give what one
process with all rows would compute, and keep the names of parameters and buffers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def with_synced_batchnorm(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model with every BatchNorm taking its statistics of all processes' rows."""
    if device.type == "cuda":
        converted: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        return converted
    for name, child in list(model.named_children()):
        setattr(model, name, with_synced_batchnorm(child, device))
    return SyncedBatchNorm.of(model) if isinstance(model, _BatchNorm) else model


class SyncedBatchNorm(_BatchNorm):
    """Normalises by mean and variance over all processes; shares may be of any size, or empty."""

    @classmethod
    def of(cls, layer: _BatchNorm) -> SyncedBatchNorm:
        """Return a layer with another one's settings, parameters and buffers: the same tensors."""
        made = cls(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made.weight, made.bias = layer.weight, layer.bias
        made.running_mean, made.running_var = layer.running_mean, layer.running_var
        made.num_batches_tracked = layer.num_batches_tracked
        return made.train(layer.training)

    def _check_input_dim(self, input: torch.Tensor) -> None:  # noqa: A002  # its name in torch
        del input

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # its name in torch
        if not self.training:
            return F.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        others = [dim for dim in range(input.ndim) if dim != 1]
        shape = [1, -1] + [1] * (input.ndim - 2)
        count = _summed(input.new_tensor(input.numel() // input.shape[1]))
        mean = _summed(input.sum(others)) / count
        centred = input - mean.view(shape)
        variance = _summed(centred.square().sum(others)) / count
        self._track(mean.detach(), variance.detach(), float(count))
        out = centred * (variance + self.eps).rsqrt().view(shape)
        return out * self.weight.view(shape) + self.bias.view(shape) if self.affine else out

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: float) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance * count / max(count - 1, 1), share)


class _Sum(torch.autograd.Function):
    """The sum over processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor) -> torch.Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total


def _summed(values: torch.Tensor) -> torch.Tensor:
    summed: torch.Tensor = _Sum.apply(values)
    return summed
