"""BatchNorm layers of a network: find the layers, hook their inputs, and sum the inputs quickly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lpld_labels.errors import InvalidArgumentError

_CHUNK_VALUES = 1 << 17
"""Number of values to sum at a time on a CPU. Temporaries then fit in the cache: 2 to 3 times faster."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchNormLayer:
    """A BatchNorm2d layer, its name in the network, and its global statistics: float [channels]."""

    name: str
    module: nn.BatchNorm2d
    running_mean: Tensor
    running_var: Tensor

    @property
    def channels(self) -> int:
        return self.module.num_features


def batchnorm_layers(model: nn.Module, *, name: str = "the network") -> tuple[BatchNormLayer, ...]:
    """Return the BatchNorm2d layers in module order; refuse a network that has none."""
    layers = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.BatchNorm2d):
            continue
        mean, variance = module.running_mean, module.running_var
        if mean is None or variance is None:
            raise InvalidArgumentError(
                f"BatchNorm layer '{path}' does not track statistics",
                hint="use a teacher whose BatchNorm layers have track_running_stats=True",
            )
        layers.append(BatchNormLayer(name=path, module=module, running_mean=mean, running_var=variance))
    if not layers:
        raise InvalidArgumentError(
            f"{name} has no BatchNorm2d layer, so it has no statistics to match",
            hint="use a BatchNorm network such as a ResNet for squeeze and recover; build works without",
        )
    return tuple(layers)


@contextlib.contextmanager
def watched_inputs(layers: Sequence[BatchNormLayer], watch: Callable[[int, Tensor], None]) -> Iterator[None]:
    """While the block runs, call `watch(layer index, input [B, channels, H, W])` before each layer runs."""
    with contextlib.ExitStack() as stack:
        for number, layer in enumerate(layers):

            def before(module: nn.Module, inputs: tuple[Tensor, ...], number: int = number) -> None:
                watch(number, inputs[0])

            stack.enter_context(layer.module.register_forward_pre_hook(before))
        yield


def image_sums(values: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Return sum and sum of squares of ``values - shift`` over the pixels of each image and channel.

    values: float [B, channels, H, W]. shift: float [channels], close to the mean, to keep the variance
    accurate where the mean is large. Both results: float [B, channels].
    """
    offset = shift.to(values.dtype).view(1, -1, 1, 1)
    images = len(values)
    step = images if values.is_cuda else max(1, _CHUNK_VALUES * images // max(1, values.numel()))
    first, second = [], []
    for chunk in torch.split(values, step):
        centred = chunk - offset
        first.append(centred.sum(dim=(2, 3)))
        second.append(centred.square_().sum(dim=(2, 3)))
    return torch.cat(first), torch.cat(second)
