"""What a work directory says of its teachers, without loading any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def teacher_facts(root: Path, kind: str = "smoothed") -> dict[str, Any] | None:
    """Return how a teacher was trained and how good it is; None if the work directory has none."""
    path = root / f"teacher-{kind}.json"
    facts: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return facts
