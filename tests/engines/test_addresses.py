"""Ray and a pool at an address: workers gather it on a shared disk and send it, the driver its manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.errors import StoreError
from lpld_labels.exec.ray_engine import RayEngine
from lpld_labels.exec.ray_session import RaySettings
from lpld_labels.format.files import FileEntry
from lpld_labels.pool.pool_files import PoolFiles
from lpld_labels.transforms.encode import encode_pool
from lpld_labels.transforms.settings import EncodeSettings
from lpld_labels.transforms.targets import RemoteTarget
from tests.engines.ray_cluster import WHOLE
from tests.factories import make_batches, write_pool
from tests.lpld_labels.io.pools import content
from tests.servers.proxy import Proxy
from tests.servers.rules import Rule

INT8 = EncodeSettings(codec="int8")


def test_workers_send_what_they_have_made(
    bucket: str, s3_proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is started here, so its workers know the server as this process does."""
    monkeypatch.setenv("LPLD_LABELS_CACHE", str(tmp_path / "shared"))
    sent_here: list[str] = []
    put = RemoteTarget.put

    def noted(self: RemoteTarget, files: PoolFiles, entry: FileEntry) -> None:
        sent_here.append(entry.role)
        put(self, files, entry)

    monkeypatch.setattr(RemoteTarget, "put", noted)
    out = f"{bucket}/pools/int8"
    with (
        write_pool(tmp_path / "pool", make_batches(4, 6)) as pool,
        RayEngine(RaySettings(workers=2)) as engine,
    ):
        if WHOLE:  # half a minute, because workers try again and again
            s3_proxy.behave(Rule(harm="fail", method="PUT", match="/labels/"))
            with pytest.raises(StoreError, match=r"labels/.*, in sending labels/"):
                encode_pool(pool, out, INT8, executor=engine)
            s3_proxy.behave()
        encode_pool(pool, out, INT8, executor=engine)
        assert set(sent_here) == {"images"}, "labels and views go by the workers"
        encode_pool(pool, tmp_path / "expected", INT8)
    assert content(out) == content(tmp_path / "expected")


def test_without_a_shared_directory_it_is_said_how_to_name_one(
    cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LPLD_LABELS_CACHE", raising=False)
    result = cli("encode", tmp_path, "s3://bucket/pool", "--codec", "int8", "--engine", "ray")
    assert result.exit_code == 2
    assert "name one by $LPLD_LABELS_CACHE" in " ".join(result.stderr.split())
