"""What a staging area is for: the settings that two writers of one pool must agree on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from lpld_labels.codecs import Codec
from lpld_labels.errors import StagingMismatchError
from lpld_labels.format.digests import bytes_digest
from lpld_labels.format.manifest import PoolHeader
from lpld_labels.format.schema import Views
from lpld_labels.format.strict_json import from_json, to_json

PURPOSE = "purpose"
"""Field of the plan on which writers may differ."""


def describe(header: PoolHeader, codec: Codec, images_digest: bytes, views: Views) -> dict[str, Any]:
    """Return what two writers of one pool must agree on. Lineage is not part of it."""
    plan = asdict(header)
    del plan["lineage"]
    plan["views"] = views
    plan["codec"] = {"name": codec.name, "parameters": codec.parameters()}
    plan["codec_tables"] = {name: bytes_digest(data) for name, data in codec.tables().items()}
    plan["images_digest"] = images_digest.hex()
    parsed: dict[str, Any] = from_json(to_json(plan), where="plan")
    return parsed


def require_same_plan(found: Mapping[str, Any], wanted: Mapping[str, Any], *, where: str) -> None:
    """Raise StagingMismatchError naming the first field in which the two differ."""
    for field, expected, got in differences(found, wanted):
        raise StagingMismatchError(
            f"this is another pool: field '{field}' differs",
            where=where,
            expected=repr(expected),
            got=repr(got),
            hint="finish it with its own settings, choose another path, or replace it (--overwrite)",
        )


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield (field, found, wanted) where two plans differ, whatever they are for."""
    others = _flat({name: value for name, value in wanted.items() if name != PURPOSE})
    for field, expected in _flat({name: value for name, value in found.items() if name != PURPOSE}).items():
        if others.get(field) != expected:
            yield field, expected, others.get(field)


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
