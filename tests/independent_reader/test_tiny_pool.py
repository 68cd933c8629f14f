"""Complete tiny pools of all codecs."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from . import Refused, leftovers, open_pool, verify
from .__main__ import main
from .drawing import Drawer
from .stream import rank
from .tiny_payloads import C, Payload
from .tiny_pool import HEIGHTS, SIZE, WIDTHS, TinyPool, image_file

CODECS = [
    ("f16", "plain", "logits"), ("f16", "compact", "logits"), ("f32", "plain", "logits"),
    ("f32", "compact", "logits"),
    ("int8", None, "logits"), ("int6", None, "logits"), ("int4", None, "logits"), ("topk", None, "logits"),
    ("klt", None, "logits"), ("klt", None, "probabilities"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "layout", "kind"), CODECS)
def test_pool_reads_and_verifies(tmp_path: Path, name: str, layout: str | None, kind: str) -> None:
    """Every codec decodes to what was encoded, and verifies."""
    pool = TinyPool(tmp_path, Payload(name, layout, kind), packed=name == "f16")
    opened = open_pool(tmp_path)
    assert opened.keys == [(0, 0), (0, 1), (2, 0), (2, 1)]
    for key in reversed(opened.keys):
        batch = opened.read(key)
        assert batch.labels.dtype == np.float32
        assert batch.labels.shape == (len(batch.views.images), C)
        near = 2e-5 if name == "klt" else 0
        assert np.abs(batch.labels - pool.labels[key]).max() <= near
    assert opened.read((0, 0)).views.mix == 1
    assert opened.read((2, 0)).views.mix == 2
    if name == "f16":
        assert [opened.image(row) for row in range(5)] == [image_file(row) for row in range(5)]
    verify(tmp_path)
    assert leftovers(opened) == []


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints keys, rows and digest."""
    pool = TinyPool(tmp_path, Payload("f16", "plain"))
    assert main([str(tmp_path)]) == 0
    assert pool.content_digest() in capsys.readouterr().out
    (tmp_path / "pool.json").unlink()
    assert main([str(tmp_path)]) == 1


def drawn_pool(root: Path, **how: Any) -> TinyPool:
    """Make a pool whose views are drawn, with the digests that this reader's drawing gives."""
    pool = TinyPool(root, Payload("f32", "compact"))
    pool.files = [entry for entry in pool.files if entry["role"] != "views"]
    shutil.rmtree(root / "views")
    manifest = pool.manifest()
    how = manifest["augmentation"] | how
    components = manifest["components"]
    for row in pool.index:
        row["mix_strength"] = None if how["mix"] == "none" else 0.4
    changes = {"views": "drawn", "seed": 2**40 + 3, "augmentation": how, "components": components}
    for _ in range(2):  # the first time without digests, to open it and to draw
        pool.write_index()
        pool.write_manifest(**(changes | {"components": pool.manifest()["components"]}))
        opened = open_pool(root)
        drawer = Drawer(opened.manifest, opened.images)
        for row, entry in zip(pool.index, opened.index, strict=True):
            digest = drawer.draw(entry, "x").digest()
            row["views_digest"] = digest[:8]
            row["digest"] = sha256(digest + pool.canonical[entry.key]).digest()[:16]
    return pool


def test_drawn(tmp_path: Path) -> None:
    """Drawn views are a permutation of the images, flip as NumPy's draws say, and follow the seed."""
    drawn_pool(tmp_path, flip_probability=0.5)
    opened = open_pool(tmp_path)
    views = [opened.read(key).views for key in ((0, 0), (0, 1))]
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([1, 3, 2**8, 0])))
    wanted = np.argsort(rng.random(5), kind="stable")
    assert [*views[0].images, *views[1].images] == wanted.tolist()
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([2, 3, 2**8, 0, 0])))
    assert views[0].flips.tolist() == (rng.random(4) < 0.5).tolist()
    verify(tmp_path)
    manifest = json.loads((tmp_path / "pool.json").read_text())
    (tmp_path / "pool.json").write_text(json.dumps(manifest | {"seed": 4}))
    with pytest.raises(Refused, match="views_digest"):
        open_pool(tmp_path).read((0, 0))
    (tmp_path / "pool.json").write_text(json.dumps(manifest | {"seed": None}))
    with pytest.raises(Refused, match="seed"):
        open_pool(tmp_path)


def test_drawn_with_everything(tmp_path: Path) -> None:
    """All features can be drawn and fit their ranges."""
    how = {"crop_scale": [0.08, 1], "flip_probability": 0.5, "mix": "cutmix", "mix_alpha": 1.0}
    drawn_pool(tmp_path, **how, cutout_fraction=0.3, patch_grid=3)
    verify(tmp_path)
    views = open_pool(tmp_path).read((2, 0)).views
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([2, 3, 2**8, 2, 0])))
    assert views.patches is not None
    assert views.cutouts is not None
    assert views.fills is not None
    assert views.partners is not None
    assert views.strength == 0.4
    assert np.array_equal(views.patches, np.argsort(rng.random((4, 9)), axis=1, kind="stable"))
    u, v, w = rng.random((4, 10)), rng.random((4, 10)), rng.random((4, 2))
    for i, (image, (top, left, height, width)) in enumerate(zip(views.images, views.crops, strict=True)):
        h, b = HEIGHTS[image], WIDTHS[image]
        area = (0.08 + u[i] * 0.92) * h * b
        ratio = np.exp(np.log(3 / 4) + v[i] * (np.log(4 / 3) - np.log(3 / 4)))
        tall, wide = np.rint(np.sqrt(area / ratio)), np.rint(np.sqrt(area * ratio))
        fits = np.flatnonzero((tall >= 1) & (tall <= h) & (wide >= 1) & (wide <= b))
        if len(fits):
            assert (height, width) == (tall[fits[0]], wide[fits[0]])
            assert (top, left) == (int(w[i, 0] * (h - height + 1)), int(w[i, 1] * (b - width + 1)))
    assert np.array_equal(views.flips, rng.random(4) < 0.5)
    start = (rng.random((4, 2)) * SIZE).astype(int) - 1  # sides of 0.3 * (8, 6) are 2 and 2
    assert np.array_equal(views.cutouts[:, :2], np.maximum(start, 0))
    assert np.array_equal(views.cutouts[:, 2:], np.minimum(start + 2, SIZE))
    assert np.array_equal(views.fills, (rng.random((4, 3)) * 256).astype(int))
    rng.random(2)
    assert np.array_equal(views.partners, np.argsort(rng.random(4), kind="stable"))
    centre = (rng.random(2) * SIZE).astype(int)
    half = np.array([3, 2])  # floor(8 * sqrt(0.6)) = 6 and floor(6 * sqrt(0.6)) = 4, halved
    assert views.mix_box == (*np.maximum(centre - half, 0), *np.minimum(centre + half, SIZE))
    assert rank(1, 2, 3) != rank(1, 2)


BAD_DRAWING = [
    ({"crop_scale": [0, 1]}, "crop_scale"), ({"crop_scale": [0.5, 1.5]}, "crop_scale"),
    ({"crop_ratio": [2, 1]}, "crop_ratio"), ({"flip_probability": 1.5}, "flip_probability"),
    ({"cutout_fraction": -0.5}, "cutout_fraction"), ({"mix": "mixup"}, "mix_alpha"),
    ({"mix": "cutmix", "mix_alpha": 0}, "mix_alpha"),
]  # fmt: skip


@pytest.mark.parametrize(("how", "match"), BAD_DRAWING)
def test_not_drawable(tmp_path: Path, how: dict[str, Any], match: str) -> None:
    """What views cannot be drawn from is refused where they are drawn, and not where they are stored."""
    pool = TinyPool(tmp_path, Payload("f32", "compact"))
    pool.write_manifest(augmentation=pool.manifest()["augmentation"] | how)
    verify(tmp_path)
    with pytest.raises(Refused, match=match):
        drawn_pool(tmp_path, **how)


@pytest.mark.parametrize(("change", "match"), [
    ({"batch": 2}, "no epoch has"), ({"rows": 2}, "an epoch has 1"), ({"mix_strength": None}, "mix_strength"),
    ({"mix_strength": -0.0}, "mix_strength"), ({"mix_strength": 1.5}, "mix_strength"),
])  # fmt: skip
def test_drawn_keys(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    """A key or a size that no epoch gives is refused, and a strength out of range."""
    pool = drawn_pool(tmp_path, mix="mixup", mix_alpha=0.5)
    verify(tmp_path)
    changes = json.loads((tmp_path / "pool.json").read_text())
    pool.index[3].update(change)
    pool.write_index()
    pool.write_manifest(**{name: changes[name] for name in ("views", "seed", "augmentation")})
    with pytest.raises(Refused, match=match):
        open_pool(tmp_path)


def test_empty_pool(tmp_path: Path) -> None:
    """A pool may have no shards, and then no batches."""
    pool = TinyPool(tmp_path, Payload("int8"))
    pool.files = [entry for entry in pool.files if entry["role"] not in ("views", "labels")]
    shutil.rmtree(tmp_path / "views")
    shutil.rmtree(tmp_path / "labels")
    pool.index = []
    pool.write_index()
    nothing = {"epochs": 0, "batches": 0, "incomplete_batches": 0, "rows": 0}
    none = {"minimum": 0, "maximum": 0, "median": 0, "images": 0, "classes": 0}
    pool.write_manifest(counts={"images": 5} | nothing, coverage=none)
    verify(tmp_path)
    pool.write_manifest(counts={"images": 5} | nothing, coverage=none | {"maximum": 1})
    with pytest.raises(Refused, match="coverage"):
        verify(tmp_path)
