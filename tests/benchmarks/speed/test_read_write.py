from pathlib import Path

import pytest

from benchmarks.common.label_source import real_batches
from benchmarks.speed.read_write import on_disk, write_all
from tests.benchmarks.conftest import QuickRun


@pytest.mark.thorough
def test_quick_run(quick_run: QuickRun) -> None:
    layouts = quick_run("benchmarks.speed.read_write")["layouts"]
    assert {"pickle", "f16", "f16:plain", "int8"} <= set(layouts)
    assert all(layout["random_read"]["median_s"] > 0 for layout in layouts.values())


def test_real_logits_take_at_most_087_of_the_pickle_layout(tmp_path: Path) -> None:
    write_all(tmp_path, list(real_batches()))
    pickled, files = on_disk(tmp_path, "pickle")
    compact, _ = on_disk(tmp_path, "f16")
    assert files == 42
    assert compact <= 0.87 * pickled
