"""The package, built once for all tests of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.package.environments import Built, build_package


@pytest.fixture(scope="package")
def built(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The sdist and the wheel."""
    return build_package(project, tmp_path_factory.mktemp("package"))
