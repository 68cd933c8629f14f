from pathlib import Path

import numpy as np

from lpld_labels import LabelBatch, PoolReader
from lpld_labels.format.drawing import draw_views
from tests.cli.build_runs import Cli, facts, passed, words_of
from tests.factories import make_header, make_images, write_pool
from tests.label_factory import make_logits
from tests.lpld_labels.transforms.test_encode import CLASSES, ROWS, labelled


def test_what_a_codec_keeps_is_printed(cli: Cli, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    write_pool(pool, labelled(), header=make_header(CLASSES, ROWS)).close()
    found = facts(cli("encode", pool, tmp_path / "out", "--codec", "klt", "--fidelity", 0.95, "--json"))
    assert found["codec"] == "klt"
    assert found["parameters"]["target"] == {"fidelity": 0.95, "temperature": 20.0, "seed": 0}
    assert set(found["fidelity"]["kept"]) == {"1", "4", "20"}
    assert 0.94 < found["fidelity"]["kept"]["20"] < 1
    assert (found["fidelity_asked"], found["fidelity_reached"]) == (0.95, found["fidelity"]["kept"]["20"])
    assert found["bytes"]["before"] > found["bytes"]["after"]
    with PoolReader(tmp_path / "out") as out:
        assert out.manifest.content_digest == found["content_digest"]
        assert out.header.lineage[-1].parameters["fidelity"] == found["fidelity"]

    smaller = passed(cli("encode", pool, tmp_path / "topk", "--codec", "topk:5:8"))
    shown = words_of(smaller.stdout)
    for word in ("topk", "parameters k 5", "value bits 8", "bytes after", "fidelity kept 20", "out "):
        assert word in shown
    assert "fidelity asked" not in shown
    words = words_of(
        passed(cli("encode", pool, tmp_path / "t2", "--codec", "klt", "--temperature", 2.5)).stdout
    )
    assert "fidelity asked 0.97 fidelity reached 0.9" in words
    with PoolReader(tmp_path / "t2") as out:
        assert set(out.header.lineage[-1].parameters["fidelity"]["kept"]) == {"1", "2.5", "4", "20"}
    assert "larger than" not in smaller.stderr
    larger = passed(cli("encode", tmp_path / "topk", tmp_path / "again", "--codec", "f32", "--from-lossy"))
    assert "note: the new pool is larger than the old one" in larger.stderr


def test_views_are_left_out_and_put_back(tmp_path: Path, cli: Cli) -> None:
    header, images = make_header(10, 10), make_images(40, classes=10)
    batches = []
    for number in range(8):
        views = draw_views(
            header.augmentation, images, seed=0, epoch=number // 4, batch=number % 4, batch_size=10
        )
        batches.append(LabelBatch(**vars(views), labels=make_logits(10, 10, seed=number).astype(np.float16)))
    write_pool(tmp_path / "pool", batches, header=header, images=images).close()
    drawn = facts(cli("encode", tmp_path / "pool", tmp_path / "drawn", "--views", "drawn", "--json"))
    assert drawn["bytes"]["smaller"] > 1
    passed(cli("verify", tmp_path / "drawn"))
    assert facts(cli("inspect", tmp_path / "drawn", "--json"))["views"] == "drawn"
    back = facts(cli("encode", tmp_path / "drawn", tmp_path / "back", "--views", "stored", "--json"))
    assert back["content_digest"] == drawn["content_digest"]
    assert facts(cli("inspect", tmp_path / "back", "--json"))["views"] == "stored"
