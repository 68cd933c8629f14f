"""What Hugging Face's Accelerate expects of a loader that went through `accelerator.prepare`.

Batches on its device, and to be told which loader is in use and when its last batch is out (so that
gradient accumulation ends with an epoch). Nothing here runs, and Accelerate is not imported, unless
an accelerator has prepared the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def accelerator_device(loader: Any) -> torch.device | None:
    """Return the device of the accelerator that has prepared the loader, or None."""
    if not _prepared(loader):
        return None
    from accelerate.state import PartialState

    return torch.device(PartialState().device)


@contextmanager
def told_accelerate(loader: Any) -> Iterator[None]:
    """Let Accelerate know that the loader is in use, if it has prepared it."""
    if not _prepared(loader):
        yield
        return
    from accelerate.state import GradientState

    loader.end_of_dataloader = False
    state = GradientState()
    state._add_dataloader(loader)  # noqa: SLF001  # what its own loaders call; there is no public name
    try:
        yield
    finally:
        state._remove_dataloader(loader)  # noqa: SLF001


def _prepared(loader: Any) -> bool:
    # Accelerate marks each object it has prepared; the class's own mark says something else.
    return "_is_accelerate_prepared" in vars(loader)
