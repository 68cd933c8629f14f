"""Mixed precision, and copies between host and GPU that neither side waits for.

A copy from or to pageable memory stops the host until the GPU has finished all queued work. Copies of pinned
memory are queued like kernels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import torch

from lpld_core.settings import Precision
from lpld_labels.errors import InvalidArgumentError

About = TypeVar("About")
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, amp: Precision) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which networks compute in the chosen precision."""
    if amp == "off":
        return contextlib.nullcontext()  # older versions of torch refuse MPS even if not enabled
    return torch.autocast(device.type, dtype=_DTYPES[amp])


def gradient_scaler(device: torch.device, amp: Precision) -> Any:
    """Return a GradScaler for fp16, whose gradients underflow otherwise; None for other precisions."""
    if amp != "fp16":
        return None
    if not hasattr(torch.amp, "GradScaler"):
        raise InvalidArgumentError(
            "training in fp16 requires PyTorch 2.3", got=torch.__version__, hint="use --amp bf16, or upgrade"
        )
    return torch.amp.GradScaler(device.type)


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the tensor on a device. The host does not wait for a copy to a GPU."""
    if device.type != "cuda":
        return tensor.to(device)  # MPS would queue the copy and not keep the original alive until then
    if tensor.device.type == "cpu" and torch.cuda.is_available():
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def read_behind(results: Iterable[tuple[About, torch.Tensor]]) -> Iterator[tuple[About, torch.Tensor]]:
    """Yield (about, tensor on the CPU), in order. While a result is copied, a GPU computes the next."""
    waiting: tuple[About, torch.Tensor, torch.cuda.Event | None] | None = None
    for about, tensor in results:
        if tensor.device.type != "cuda":
            yield about, tensor.cpu()
            continue
        there = torch.cuda.is_available()
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=there)
        copy.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event() if there else None  # type: ignore[no-untyped-call]  # torch leaves it
        if copied is not None:
            # By default, the event is recorded on the current device, which may be another one.
            copied.record(torch.cuda.current_stream(tensor.device))
        if waiting is not None:
            yield _finished(*waiting)
        waiting = about, copy, copied
    if waiting is not None:
        yield _finished(*waiting)


def _finished(
    about: About, copy: torch.Tensor, copied: torch.cuda.Event | None
) -> tuple[About, torch.Tensor]:
    if copied is not None:
        copied.synchronize()
    return about, copy
