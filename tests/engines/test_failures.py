"""What Ray cannot do is told in one line that names the task and the file, and finished work is kept."""

from __future__ import annotations

import dataclasses
import functools
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from lpld_core.class_statistics.settings import SqueezeSettings
from lpld_core.class_statistics.squeeze import squeeze_folder
from lpld_core.images.real_images import RealFolder
from lpld_labels.errors import ImageReadError, PoolWriteError
from lpld_labels.jobs.job import Job, Progress, Start, Worker
from lpld_labels.jobs.ray_engine import RayEngine
from lpld_labels.jobs.ray_session import RaySettings
from lpld_labels.pool.reader import PoolReader
from lpld_labels.rewriting.codec_request import CodecRequest
from lpld_labels.rewriting.encode import encode_pool
from tests.engines.ray_cluster import TwoNodes
from tests.factories import make_batches, write_pool
from tests.lpld_core.networks import noisy_folder, tiny_teacher

Cli = Callable[..., Result]


def one_line(result: Result) -> str:
    assert result.exit_code == 1, result.output
    (line,) = result.stderr.strip().splitlines()
    return line


def test_ray_is_not_installed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    result = cli("encode", tmp_path / "pool", tmp_path / "out", "--codec", "int8", "--engine", "ray")
    assert one_line(result) == (
        "error: Ray is not installed; pip install 'lpld-labels[ray]', or use --engine local"
    )
    assert not (tmp_path / "out").exists()


def test_nothing_listens(cli: Cli, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(2, 3)).close()
    asked = ("--codec", "int8", "--engine", "ray", "--ray-address", "127.0.0.1:1")
    result = cli("encode", tmp_path / "pool", tmp_path / "out", *asked)
    assert one_line(result).startswith("error: 127.0.0.1:1: no Ray cluster answers: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("option", ["--ray-address", "--cpus-per-task"])
def test_options_of_ray_go_with_it(cli: Cli, option: str, tmp_path: Path) -> None:
    result = cli("encode", tmp_path, tmp_path / "out", "--codec", "int8", option, "1")
    assert result.exit_code == 2
    assert f"{option} goes with --engine ray" in result.stderr


def test_a_command_on_a_cluster(
    cli: Cli, cluster: TwoNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths may be relative: workers begin where the command does."""
    monkeypatch.chdir(tmp_path)
    write_pool(Path("pool"), make_batches(2, 6)).close()
    asked = ("--codec", "int8", "--json")
    expected = cli("encode", "pool", "expected", *asked)
    ray = ("--engine", "ray", "--ray-address", cluster.address, "-j", 2, "--progress", "json")
    found = cli("encode", "pool", "out", *asked, *ray)
    assert found.exit_code == 0, found.output
    digests = {json.loads(result.stdout)["content_digest"] for result in (expected, found)}
    assert len(digests) == 1
    last = json.loads([line for line in found.stderr.splitlines() if line.startswith("{")][-1])
    assert (last["done"], last["total"], last["tasks"]["done"]) == (12, 12, 12)


def test_a_broken_image_is_named_with_its_task(cluster: TwoNodes, tmp_path: Path) -> None:
    folder = RealFolder.open(noisy_folder(tmp_path / "images", classes=4, images=70))
    broken = tmp_path / "images" / "class3" / "000.png"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:60] + bytes(len(whole) - 60))
    kept = tmp_path / "kept"
    kept.mkdir()
    settings = SqueezeSettings(batch_size=4)
    with RayEngine(RaySettings(address=cluster.address, workers=1)) as engine:
        with pytest.raises(ImageReadError, match=r"class3/000\.png: .*, in class class3"):
            squeeze_folder(tiny_teacher(), folder, settings, place=kept, engine=engine)
        assert len(list(kept.glob("classes-*[0-9].safetensors"))) == 3
        broken.write_bytes(whole)
        squeeze_folder(tiny_teacher(), folder, settings, place=kept, engine=engine)


class FullDisk(RayEngine):
    """Ray, one of whose workers finds its disk full after a while."""

    def run(self, job: Job[Any], progress: Progress | None = None) -> list[Any]:
        return super().run(dataclasses.replace(job, start=functools.partial(start_full, job.start)), progress)


def start_full(start: Start[Any], number: int) -> Worker[Any]:
    worker = start(number)
    # What the kernel refuses, it refuses in the middle of a file, as a full disk does.
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))
    return worker


def test_a_full_disk_on_a_worker(cluster: TwoNodes, tmp_path: Path) -> None:
    write_pool(tmp_path / "pool", make_batches(2, 6)).close()
    asked = RaySettings(address=cluster.address, workers=1)
    with PoolReader(tmp_path / "pool") as pool:
        expected = encode_pool(pool, tmp_path / "expected", CodecRequest(name="int8"))
        with (
            FullDisk(asked) as engine,
            pytest.raises(PoolWriteError, match=r"staging.*, in (the batches from )?epoch 0 batch 0"),
        ):
            encode_pool(pool, tmp_path / "out", CodecRequest(name="int8"), engine=engine)
        with RayEngine(asked) as engine:
            found = encode_pool(pool, tmp_path / "out", CodecRequest(name="int8"), engine=engine)
    assert found.manifest.content_digest == expected.manifest.content_digest
