from collections.abc import Iterator

import pytest

from tests.engines.ray_cluster import TwoNodes


@pytest.fixture(scope="package")
def cluster() -> Iterator[TwoNodes]:
    """One cluster for all tests here: it takes seconds to start."""
    nodes = TwoNodes()
    yield nodes
    nodes.shutdown()
