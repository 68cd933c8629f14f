"""Weight files: safetensors or torch, never code; and the digest that names a set of weights."""

from __future__ import annotations

import hashlib
import json
import pickle
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.io.storage import write_atomically

Tensors = dict[str, torch.Tensor]

METADATA_KEY = "lpld-labels"
"""The one safetensors metadata entry this project writes: a JSON object."""
_GLOBAL = re.compile(r"(?:GLOBAL|global:?|class) ([\w.]+)")
"""What torch says of a name in a checkpoint that it does not allow."""
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_HARMLESS = "num_batches_tracked"
"""A counter that no output depends on; old checkpoints lack it."""


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """Tensors by parameter name, and what the file says about itself (empty for foreign files)."""

    path: Path
    tensors: Tensors
    about: dict[str, Any] = field(default_factory=dict)


def read_weights(path: str | Path) -> WeightsFile:
    """Read a safetensors or torch checkpoint; no code in the file can run.

    Wrappers such as ``{"state_dict": ...}`` and a ``module.`` prefix are taken off.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidArgumentError(
            "no such weights file", where=path, hint="give a safetensors file or a torch checkpoint"
        )
    if path.suffix == ".safetensors" or _begins_as_safetensors(path):
        return _read_safetensors(path)
    try:
        with warnings.catch_warnings():
            # Remarks on the file's pickle protocol; whether it can be read is told by the error.
            warnings.simplefilter("ignore", UserWarning)
            document = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise _not_weights(path, _why_unreadable(error)) from None
    return WeightsFile(path=path, tensors=_state_dict(document, path))


def _why_unreadable(error: Exception) -> str:
    """Say what is wrong with a torch file, without torch's advice on how to run what is in it."""
    refused = _GLOBAL.search(str(error))
    if refused:
        return f"it asks for {refused.group(1)}, which is more than tensors; nothing of it was run"
    if "weights_only" in str(error) or "Weights only" in str(error):
        return "it is damaged, or holds more than tensors; nothing of it was run"
    return first_line(error)


def _begins_as_safetensors(path: Path) -> bool:
    """Whether a file, whatever its name, has the beginning of one: a length, then a JSON object."""
    with path.open("rb") as stream:
        return stream.read(9)[8:] == b"{"


def _read_safetensors(path: Path) -> WeightsFile:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in sorted(file.keys())}
    except (SafetensorError, OSError) as error:
        raise _not_weights(path, first_line(error)) from None
    try:
        about = json.loads(metadata.get(METADATA_KEY, "{}"))
    except json.JSONDecodeError:
        raise _not_weights(path, f"metadata entry '{METADATA_KEY}' is not JSON") from None
    if not isinstance(about, dict):
        raise _not_weights(path, f"metadata entry '{METADATA_KEY}' is no JSON object")
    return WeightsFile(path=path, tensors=tensors, about=about)


def _state_dict(document: Any, path: Path) -> Tensors:
    for wrapper in _WRAPPERS:
        if isinstance(document, Mapping) and isinstance(document.get(wrapper), Mapping):
            document = document[wrapper]
    if not isinstance(document, Mapping) or not document:
        raise _not_weights(path, f"it holds a {type(document).__name__}, not tensors by name")
    for name, value in document.items():
        if not isinstance(value, torch.Tensor):
            raise _not_weights(path, f"entry '{name}' is a {type(value).__name__}, not a tensor")
    tensors: Tensors = dict(document)
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): value for name, value in tensors.items()}
    return tensors


def first_line(error: Exception) -> str:
    """Return the first line of what an error says, or its kind if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _not_weights(path: Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"not a weights file ({reason})",
        where=path,
        hint="give a safetensors file, or a torch checkpoint that holds tensors only",
    )


def save_weights(
    path: str | Path,
    tensors: Mapping[str, torch.Tensor],
    about: Mapping[str, Any],
    *,
    within: Path | None = None,
) -> None:
    """Write tensors as safetensors, atomically, with `about` (JSON values) as metadata.

    within: see `write_atomically`.
    """
    ready = {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())}
    metadata = {METADATA_KEY: json.dumps(dict(about), sort_keys=True, allow_nan=False)}
    write_atomically(Path(path), save(ready, metadata), within=within)


def load_into(model: nn.Module, weights: WeightsFile) -> None:
    """Copy the tensors into a model; names and shapes must agree (counters may be absent)."""
    own = model.state_dict()
    missing = sorted(name for name in own if name not in weights.tensors and _HARMLESS not in name)
    surplus = sorted(name for name in weights.tensors if name not in own)
    for problem, names in (("lack", missing), ("have an unexpected", surplus)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InvalidArgumentError(
                f"weights {problem} parameter '{names[0]}'{more}",
                where=weights.path,
                hint="these are the weights of another architecture",
            )
    for name, tensor in weights.tensors.items():
        if tensor.shape != own[name].shape:
            raise InvalidArgumentError(
                f"parameter '{name}' has the wrong shape",
                where=weights.path,
                expected=list(own[name].shape),
                got=list(tensor.shape),
                hint="these are the weights of another architecture or class count",
            )
    model.load_state_dict(weights.tensors, strict=False)


def weights_digest(model: nn.Module) -> str:
    """Return the hex SHA-256 over all parameters and buffers that outputs depend on.

    Taken over name, dtype, shape and little-endian bytes in name order, so it depends neither on
    the file the weights came from nor on the device they are on.
    """
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if _HARMLESS in name:
            continue
        state.update(f"{name}\n{tensor.dtype}\n{list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        state.update(flat.view(torch.uint8).numpy().data)
    return state.hexdigest()
