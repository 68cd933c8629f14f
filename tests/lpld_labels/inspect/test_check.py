"""`verify` and what a manifest says: what changes pixels or labels is noticed, descriptions are not bound."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lpld_labels.errors import LabelPoolError
from lpld_labels.inspect.check import check_pool

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


def whole(path: Path) -> bool:
    try:
        return check_pool(path).whole
    except LabelPoolError:
        return False


def changed(tmp_path: Path, name: str, place: tuple[str | int, ...], value: object) -> Path:
    """Return a copy of a golden pool whose manifest says something else at one place."""
    path = tmp_path / name
    shutil.copytree(GOLDEN / name, path)
    assert whole(path)
    manifest = json.loads((path / "pool.json").read_text())
    holder: Any = manifest
    for key in place[:-1]:
        holder = holder[key]
    assert holder[place[-1]] != value
    holder[place[-1]] = value
    (path / "pool.json").write_text(json.dumps(manifest))
    return path


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("f16", ("label_kind",), "probabilities"),
        ("topk-3", ("codec", "parameters", "label_kind"), "probabilities"),
        ("klt", ("codec", "parameters", "label_kind"), "probabilities"),
        ("f16", ("augmentation", "resize"), "pil"),
        ("f16", ("augmentation", "output_height"), 17),
        ("f16", ("teachers", 0, "mean", 0), 0.25),
        ("f16", ("teachers", 0, "std", 2), 0.5),
        ("f16", ("classes",), 4),
        ("f16-drawn", ("seed",), 1),
        ("f16-drawn", ("augmentation", "crop_scale", 0), 0.5),
        ("f16-drawn", ("augmentation", "flip_probability"), 0.25),
    ],
)
def test_what_readers_would_give_otherwise_is_noticed(
    tmp_path: Path, name: str, place: tuple[str | int, ...], value: object
) -> None:
    assert not whole(changed(tmp_path, name, place, value))


@pytest.mark.parametrize(
    ("place", "value"), [(("seed",), 1), (("augmentation", "crop_scale", 0), 0.5), (("created_by",), "me")]
)
def test_where_stored_views_came_from_is_a_description(
    tmp_path: Path, place: tuple[str | int, ...], value: object
) -> None:
    # SPEC.md: the views themselves say what was drawn, and nobody may refuse a pool because the two differ.
    assert whole(changed(tmp_path, "f16", place, value))
