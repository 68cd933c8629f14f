"""The reference folders, imported once for all tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lpld_labels.foreign.importers import ImportReport, import_labels

REFERENCES = {
    "sre2l_mixup": ("in1k", "sre2l"),
    "lpld_in1k": ("in1k", "lpld"),
    "lpld_tiny": ("tiny", "lpld"),
    "lpld_in21k": ("in1k", "lpld21k"),
    "lpqld_in1k_k50": ("in1k", "lpqld"),
}
"""Folder -> (images, format)."""


@pytest.fixture(scope="session")
def imported(
    tmp_path_factory: pytest.TempPathFactory, shared_data: Path
) -> Callable[[str], tuple[Path, Path, ImportReport]]:
    """Import a reference folder: name -> (folder, pool, report)."""
    known: dict[str, tuple[Path, Path, ImportReport]] = {}

    def get(name: str) -> tuple[Path, Path, ImportReport]:
        if name not in known:
            source = shared_data / "reference_pools" / name
            pool = tmp_path_factory.mktemp("imported") / name
            images = shared_data / "reference_images" / REFERENCES[name][0]
            known[name] = (source, pool, import_labels(source, pool, images=images))
        return known[name]

    return get
