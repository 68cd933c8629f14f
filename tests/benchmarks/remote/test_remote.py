from pathlib import Path

import pytest

from benchmarks.remote.__main__ import measure
from tests.servers.s3 import environment


@pytest.mark.thorough
def test_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in environment(""):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "cache"))
    results = measure(tmp_path, gigabytes=0.012, rounds=1, peers_python=None)
    for codec in ("f16:plain", "klt", "unlimited"):
        assert results[codec]["cold"]["batches_per_second"] > 0
    # Every byte once; a listing and the manifest come on top of so small a pool.
    assert results["f16:plain"]["bytes_per_pool_byte"] < 1.2
    assert results["inspect"]["requests"] == 1
    assert results["inspect"]["bytes"] < 1e6
    assert results["verify"]["bytes"] < 1.05 * results["f16:plain"]["pool_bytes"]
    assert results["copy_ratio_40"]["of_result"] > 0
