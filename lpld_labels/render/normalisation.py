"""From pixels to what a model expects."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.manifest import require_normalisation

SERIAL_VALUES = 32_768
"""Torch shares CPU operations on more values among its threads. Waiting for them costs more than these
few operations on an image, and stalls the loader when workers keep all cores busy. This many float32
values also stay in a core's cache from one pass to the next."""


def normalise(
    pixels: torch.Tensor, mean: Sequence[float], std: Sequence[float], *, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Return (pixels / 255 - mean) / std per channel: float32 [B, 3, H, W], channels-last.

    pixels: uint8 or float32 [B, 3, H, W] on any device, fastest when channels-last.
    out: tensor to write into; may be `pixels` itself when that is float32.

    Every value is rounded on its own, so rows taken from several batches come out as they would in
    their own. For pixels that need no gradient.
    """
    require_normalisation(mean, std)
    if pixels.ndim != 4 or pixels.shape[1] != 3:
        raise InvalidArgumentError("pixels have the wrong shape", expected="[B, 3, H, W]", got=pixels.shape)
    if out is None:
        out = torch.empty(
            pixels.shape, dtype=torch.float32, device=pixels.device, memory_format=torch.channels_last
        )
    fits = out.shape == pixels.shape and out.dtype == torch.float32 and out.device == pixels.device
    if not fits or not out.is_contiguous(memory_format=torch.channels_last):
        raise InvalidArgumentError(
            "out does not fit the pixels",
            expected=f"float32 {list(pixels.shape)} on {pixels.device}, channels-last",
            got=f"{out.dtype} {list(out.shape)} on {out.device}, strides {list(out.stride())}",
        )
    batch, _, height, width = out.shape
    scale = torch.tensor([1.0 / (255.0 * s) for s in std], device=out.device).repeat(width)
    shift = torch.tensor([m / s for m, s in zip(mean, std, strict=True)], device=out.device).repeat(width)
    # One factor per value of an image row, not one per channel: a long inner loop, not one of three.
    targets = out.permute(0, 2, 3, 1).view(batch * height, width * 3)
    sources = pixels.permute(0, 2, 3, 1).reshape(batch * height, width * 3)
    at_once = max(1, SERIAL_VALUES // (width * 3)) if out.device.type == "cpu" else batch * height
    for target, source in zip(torch.split(targets, at_once), torch.split(sources, at_once), strict=True):
        if out is not pixels:
            target.copy_(source)
        target.mul_(scale).sub_(shift)
    return out
