"""Label folders in the layouts of the authors' programs: written here, and the authors' own where at hand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from lpld_labels.interop.importing import ImportReport, import_labels
from tests.conftest import SHARED_DATA
from tests.lpld_labels.interop.label_folders import write_images, write_reference

REFERENCES = {
    "sre2l_mixup": ("in1k", "sre2l"),
    "lpld_in1k": ("in1k", "lpld"),
    "lpld_tiny": ("tiny", "lpld"),
    "lpld_in21k": ("in1k", "lpld"),
    "lpqld_in1k_k50": ("in1k", "lpqld"),
}
"""Folder -> (images, format)."""
ORIGINS = ("written", "authors") if (SHARED_DATA / "reference_pools").is_dir() else ("written",)


@dataclass(frozen=True, kw_only=True)
class Reference:
    labels: Path
    images: Path


@pytest.fixture
def one_batch_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let imports cut their work into shards of one batch, or one group of images."""
    for module in ("import_batches", "importing"):
        monkeypatch.setattr(f"lpld_labels.interop.{module}.raw_batches_per_shard", lambda header: 1)


References = Callable[[str], Reference]
Imported = Callable[[str], tuple[Reference, Path, ImportReport]]


@pytest.fixture(scope="session", params=ORIGINS)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Reference]:
    if request.param == "authors":
        return authors_reference
    root = tmp_path_factory.mktemp("written")

    def get(name: str) -> Reference:
        found = Reference(labels=root / name, images=root / "images" / REFERENCES[name][0])
        if not found.images.exists():
            write_images(found.images, 24, size=64 if found.images.name == "tiny" else 224)
        if not found.labels.exists():
            write_reference(found.labels, name)
        return found

    return get


def authors_reference(name: str) -> Reference:
    return Reference(
        labels=SHARED_DATA / "reference_pools" / name,
        images=SHARED_DATA / "reference_images" / REFERENCES[name][0],
    )


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory, reference: References) -> Imported:
    known: dict[str, tuple[Reference, Path, ImportReport]] = {}

    def get(name: str) -> tuple[Reference, Path, ImportReport]:
        if name not in known:
            source, pool = reference(name), tmp_path_factory.mktemp("imported") / name
            known[name] = (source, pool, import_labels(source.labels, pool, images=source.images))
        return known[name]

    return get
