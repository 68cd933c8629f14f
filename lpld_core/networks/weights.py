"""Weight files (safetensors, or torch checkpoints read without running code) and the weights digest."""

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
"""The safetensors metadata entry that this project writes: a JSON object."""
_GLOBAL = re.compile(r"(?:GLOBAL|global:?|class) ([\w.]+)")
"""Matches, in torch's error about a checkpoint, the name that torch refused to load."""
_WRAPPERS = ("state_dict", "model_state_dict", "model")
_COUNTER = "num_batches_tracked"
"""Marks the names of BatchNorm counters. No output depends on these counters; old checkpoints lack them."""


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """Content of a weights file. about: this project's metadata; empty in files of other programs."""

    path: Path
    tensors: Tensors
    about: dict[str, Any] = field(default_factory=dict)


def with_prefix(tensors: Tensors, prefix: str) -> Tensors:
    """Return the tensors whose names start with a prefix; remove the prefix from the names."""
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def read_weights(path: str | Path) -> WeightsFile:
    """Read safetensors or a torch checkpoint, without running code; unwrap state_dict and strip `module.`."""
    path = Path(path)
    if not path.is_file():
        raise InvalidArgumentError(
            "no such weights file", where=path, hint="give a safetensors file or a torch checkpoint"
        )
    with path.open("rb") as stream:
        start = stream.read(9)
    # A safetensors file starts with an 8-byte length and a JSON object.
    if path.suffix == ".safetensors" or start[8:] == b"{":
        return _read_safetensors(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the pickle protocol
            document = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise _not_weights(path, _why_unreadable(error)) from None
    return WeightsFile(path=path, tensors=_state_dict(document, path))


def _why_unreadable(error: Exception) -> str:
    """Return why torch could not read the file, without torch's advice to run code from the file."""
    refused = _GLOBAL.search(str(error))
    if refused:
        return f"it refers to {refused.group(1)}, which is not tensor data; no code was run"
    if "weights_only" in str(error) or "Weights only" in str(error):
        return "it is damaged or contains more than tensors; no code was run"
    return first_line(error)


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
        raise _not_weights(path, f"metadata entry '{METADATA_KEY}' is not a JSON object")
    return WeightsFile(path=path, tensors=tensors, about=about)


def _state_dict(document: Any, path: Path) -> Tensors:
    for wrapper in _WRAPPERS:
        if isinstance(document, Mapping) and isinstance(document.get(wrapper), Mapping):
            document = document[wrapper]
    if not isinstance(document, Mapping) or not document:
        raise _not_weights(path, f"it holds a {type(document).__name__}, not a dict of tensors")
    for name, value in document.items():
        if not isinstance(value, torch.Tensor):
            raise _not_weights(path, f"entry '{name}' is a {type(value).__name__}, not a tensor")
    tensors: Tensors = dict(document)
    return with_prefix(tensors, "module.") if all(name.startswith("module.") for name in tensors) else tensors


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its class name."""
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
    """Write tensors and metadata (JSON values) as safetensors, atomically. within: see `write_atomically`."""
    ready = {name: value.detach().cpu().contiguous() for name, value in sorted(tensors.items())}
    metadata = {METADATA_KEY: json.dumps(dict(about), sort_keys=True, allow_nan=False)}
    write_atomically(Path(path), save(ready, metadata), within=within)


def load_into(model: nn.Module, weights: WeightsFile) -> None:
    """Load weights into a model; names and shapes must match, but BatchNorm counters may be missing."""
    own = model.state_dict()
    missing = sorted(name for name in own if name not in weights.tensors and _COUNTER not in name)
    surplus = sorted(name for name in weights.tensors if name not in own)
    for problem, names in (("lack", missing), ("have an unexpected", surplus)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise InvalidArgumentError(
                f"weights {problem} parameter '{names[0]}'{more}",
                where=weights.path,
                hint="these are the weights of a different architecture",
            )
    for name, tensor in weights.tensors.items():
        if tensor.shape != own[name].shape:
            raise InvalidArgumentError(
                f"parameter '{name}' has the wrong shape",
                where=weights.path,
                expected=list(own[name].shape),
                got=list(tensor.shape),
                hint="these are the weights of a different architecture or number of classes",
            )
    model.load_state_dict(weights.tensors, strict=False)


def weights_digest(model: nn.Module) -> str:
    """Return a hex SHA-256 of name, dtype, shape and bytes of all tensors except BatchNorm counters."""
    state = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if _COUNTER in name:
            continue
        state.update(f"{name}\n{tensor.dtype}\n{list(tensor.shape)}\n".encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        state.update(flat.view(torch.uint8).numpy().data)
    return state.hexdigest()
