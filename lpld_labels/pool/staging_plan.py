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
"""Field of the plan on which writers may differ, unless it has a field DECIDING."""
DECIDING = "deciding"
"""Field of a purpose: settings that decide labels and are in no header. Only the same purpose joins then."""
_WAYS_OUT = "finish it with its own settings, choose another path, or replace it (--overwrite)"


def deciding(command: str, **settings: Any) -> dict[str, Any]:
    """Return the purpose of work that goes on only for the same command with the same settings.

    settings: as JSON values; of a command that reads pools, their content digests among them.
    """
    return {"command": command, DECIDING: settings}


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
            hint=_WAYS_OUT,
        )


def joined_plan(found: dict[str, Any], wanted: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return the plan of work that a writer joins; refuse one who wants something else.

    Older versions kept no settings that decide labels: then those of whoever joins count from now on.
    """
    require_same_plan(found, wanted, where=where)
    purpose = from_json(to_json(wanted.get(PURPOSE) or {}), where=where)
    if DECIDING not in purpose:
        return found
    if found.get(PURPOSE) is None:
        return found | {PURPOSE: purpose}
    _require_same_purpose(found[PURPOSE], purpose, where=where)
    return found


def _require_same_purpose(found: Any, wanted: Mapping[str, Any], *, where: str) -> None:
    """Raise StagingMismatchError naming the first thing in which two purposes differ."""
    there = _flat(found) if isinstance(found, dict) else {PURPOSE: found}
    asked = _flat(wanted)
    for name in sorted(there.keys() | asked.keys()):
        if there.get(name) != asked.get(name):
            raise StagingMismatchError(
                f"unfinished work for something else is here: '{name}' differs",
                where=where,
                expected=repr(there.get(name)),
                got=repr(asked.get(name)),
                hint=_WAYS_OUT,
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
