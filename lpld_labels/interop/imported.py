"""What a pool remembers of the import it came from."""

from __future__ import annotations

from typing import Any

from lpld_labels.format.manifest import PoolHeader


def import_parameters(header: PoolHeader) -> dict[str, Any]:
    """Return the parameters of the import in a pool's lineage; empty where there was none."""
    found: dict[str, Any] = {}
    for step in header.lineage:
        if step.operation == "import":
            found |= step.parameters
    return found
