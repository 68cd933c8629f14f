"""A tiny run of benchmarks/remote."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.harness import RESULTS, write_json
from benchmarks.readme import parts
from benchmarks.readme.figures import figures
from benchmarks.readme.remote import remote
from benchmarks.remote.__main__ import measure
from tests.servers.s3 import environment


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
    _check_documents(results, tmp_path, monkeypatch)


def _check_documents(results: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README gets a row and the results a section, once there is a row on the map."""
    folder = tmp_path / "results"
    folder.mkdir()
    for path in RESULTS.glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    write_json(folder / "remote.json", benchmark="remote", command="", results=results)
    page = tmp_path / "map.md"
    row = "| a | `python -m benchmarks.remote --json x.json` | [x](results/remote.json) |\n"
    rows = [line for line in parts.MAP.read_text().splitlines(keepends=True) if "remote.json" not in line]
    page.write_text("".join(rows) + row)
    monkeypatch.setattr(parts.claim_map, "__defaults__", (page,))
    found = parts.Results(folder)
    assert any("from S3 at 50 ms" in line for line in figures(found))
    text = "\n".join(remote(found))
    assert "empty cache" in text
    assert "(requests: 1)" in text
