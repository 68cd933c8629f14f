"""Ray and a pool at an address: workers gather it on a shared disk and send it, the driver its manifest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from lpld_labels.transforms.settings import EncodeSettings

INT8 = EncodeSettings(codec="int8")


def test_without_a_shared_directory_it_is_said_how_to_name_one(
    cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LPLD_LABELS_CACHE", raising=False)
    result = cli("encode", tmp_path, "s3://bucket/pool", "--codec", "int8", "--ray", "local")
    assert result.exit_code == 2
    assert "set $LPLD_LABELS_CACHE to one" in " ".join(result.stderr.split())
