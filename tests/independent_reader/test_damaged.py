"""Damaged tiny pools: each is refused by the first step that must refuse it, and by no earlier one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from . import Refused, open_pool, verify
from .tiny_damage import (
    Change,
    byte_order_mark,
    compressed_payload,
    cut_off,
    damage,
    drop_view,
    field,
    image,
    index,
    label,
    left_over,
    link_out,
    linked_manifest,
    manifest_text,
    moved,
    packed,
    shifted,
    table,
    view,
    without_crc,
)  # fmt: skip
from .tiny_payloads import C, Payload, frame, npy, planes
from .tiny_pool import TinyPool

OPENING: dict[str, tuple[Change, str]] = {
    "no manifest": (lambda pool: (pool.root / "pool.json").unlink(), "missing"),
    "version": (field("format_version", 2), "format_version"),
    "format": (field("format", "x"), "format"),
    "draft": (field("views", ...), "draft"),
    "unknown": (field("augmentation.zoom", 1), "augmentation.zoom"),
    "unknown object": (field("augmentation.zoom", {"must_understand": True}), "augmentation.zoom"),
    "unknown codec parameter": (field("codec.parameters.x", {"must_understand": False}), "parameters.x"),
    "missing": (field("coverage.median", ...), "coverage.median"),
    "twice": (manifest_text('"classes": 7', '"classes": 7, "classes": 7'), "twice"),
    "nan": (manifest_text('"median": 2', '"median": NaN'), "NaN"),
    "overflow": (manifest_text('"median": 2', '"median": 1e999'), "float64"),
    "boolean": (field("counts.epochs", True), "counts.epochs"),
    "fraction": (manifest_text('"epochs": 2', '"epochs": 2.0'), "counts.epochs"),
    "deep": (field("lineage.0.parameters.x", json.loads("[" * 40 + "]" * 40)), "deeper"),
    "byte order mark": (byte_order_mark, "byte order mark"),
    "surrogate": (field("lineage.0.parameters.x", ["\ud800"]), "surrogate"),
    "surrogate name": (field("lineage.0.parameters.\udfff", 1), "surrogate"),
    "limit": (field("batch_size", 2**20 * 20), "batch_size"),
    "classes x batch_size": (
        manifest_text('"classes": 7, "batch_size": 4', f'"classes": {2**24}, "batch_size": 9'),
        "classes x batch_size",
    ),
    "mean without std": (field("teachers.0.std", None), "std"),
    "footer size": (field("files.3.footer_bytes", 2**28 + 1), "footer_bytes"),
    "linked manifest": (linked_manifest, "link out"),
    "size": (cut_off, "bytes"),
    "gone": (lambda pool: (pool.root / "labels/s1.parquet").unlink(), "missing"),
    "link": (link_out, "link out"),
    "role": (field("files.0.path", "labels/images.parquet"), "no path of role"),
    "staging": (field("files.0.path", "staging/images.parquet"), "no path of role"),
    "components": (field("components.container", 0), "components"),
    "counts": (field("counts.rows", 9), "coverage"),
    "batches": (field("counts.batches", 3), "counts.batches"),
    "incomplete": (field("counts.incomplete_batches", 3), "counts.incomplete_batches"),
    "index digest": (lambda pool: damage(pool.files[-1]["path"], 30, False)(pool), "SHA-256"),
    "index order": (index(1, batch=0), "out of order"),
    "index position": (index(1, position=0), "position"),
    "index first row": (index(1, first_row=3), "first_row"),
    "index shard": (index(1, shard=2), "shard"),
    "index rows": (index(1, rows=5), "rows"),
    "index strength": (index(1, mix_strength=0.5), "mix_strength"),
    "group overlaps": (moved(1, -250, 250), "group_offset"),
    "group in the footer": (moved(1, 0, 10**6), "group_offset"),
    "label bytes": (index(1, label_bytes=1), "label_bytes"),
    "group empty": (index(1, group_bytes=0), "group_offset"),
    "group before the file": (index(0, group_offset=-4), "group_offset"),
}
READING: dict[str, tuple[Change, str]] = {
    "footer digest": (field("files.3.footer_digest", "0" * 64), "footer_digest"),
    "footer rows": (drop_view, "rows"),
    "views page": (damage("views/s0.parquet", 60, True), "views/s0.parquet"),
    "labels page": (damage("labels/s0.parquet", 260, True), "CRC"),
    "no crc": (without_crc, "without a CRC"),
    "compressed": (compressed_payload, "two sizes"),
    "image table": (damage("images.parquet", 60, False), "SHA-256"),
    "group moved": (moved(0, 1, 0), "labels"),
    "group short": (moved(1, 0, -1), "labels/s0"),
    "group long": (moved(0, 0, 1), "after the payload pages"),
    "views digest": (index(1, views_digest=b"x" * 8), "views_digest"),
    "slot": (view(1, slot=2), "slot"), "epoch": (view(1, epoch=1), "epoch"),
    "image": (view(1, image=5), "image"),
    "crop": (view(0, crop_height=21), "leaves"), "crop start": (view(0, crop_top=-1), "crop"),
    "partner": (view(2, mix_slot=4), "mix_slot"), "strength": (view(2, mix_strength=0.5), "differs"),
    "one zero": (view(2, mix_strength=-0.0), "differs"),
    "no fill": (view(0, cutout_red=None), "cutout_red"),
    "no strength": (view(0, mix_strength=None), "mix_strength"),
    "box": (view(0, mix_right=7), "box"), "some null": (view(0, cutout_top=None), "cutout_top"),
    "cutout": (view(0, cutout_bottom=9), "cutout"), "half": (view(4, mix_slot=0), "mix_strength"),
    "patches": (view(10, patch_order=[0, 1, 2, 2]), "permutation"),
    "empty": (view(10, patch_order=[]), "empty"),
    "patch count": (view(10, patch_order=[0]), "lengths"), "patch null": (view(10, patch_order=None), "null"),
    "nan label": (label(1, labels=[np.float16("nan")] * C), "NaN"),
    "short": (label(1, labels=[np.float16(0)] * 6), "labels"),
    "shifted": (shifted, "not C values in every row"),
    "path": (image(1, path="a/../b"), "path"), "path twice": (image(1, path="C0/ä0.PNG"), "twice"),
    "class": (image(1, **{"class": C}), "class"), "width": (image(1, width=0), "width"),
    "number": (image(1, image=0), "image"),
}  # fmt: skip
VERIFYING: dict[str, tuple[Change, str]] = {
    "content digest": (field("content_digest", "0" * 64), "content_digest"),
    "file digest": (field("files.2.digest", "0" * 64), "digest"),
    "coverage": (field("coverage.classes", 3), "coverage"),
    "keys": (label(1, slot=3), "slot"), "label": (label(1, labels=[np.float16(0)] * C), "batch digest"),
    "left over": (left_over, "left over"),
    "labels footer": (field("files.4.footer_digest", "0" * 64), "footer_digest"),
    "packed": (packed(image={"bytes": b"x", "path": "c0/ä0.png"}), "digest"),
    "packed path": (packed(image={"bytes": b"x", "path": "c0/x.png"}), "path"),
    "packed class": (packed(**{"class": 2}), "class"),
}  # fmt: skip


def read_all(root: Path) -> None:
    """Read all batches."""
    pool = open_pool(root)
    for key in pool.keys:
        pool.read(key)


STEPS: list[Callable[[Path], object]] = [open_pool, read_all, verify]


def run(pool: TinyPool, step: int, change: Change, match: str) -> None:
    """Damage the pool; the steps before must pass, this one must refuse."""
    change(pool)
    for earlier in STEPS[:step]:
        earlier(pool.root)
    with pytest.raises(Refused, match=match):
        STEPS[step](pool.root)


@pytest.mark.parametrize("name", OPENING)
def test_opening_refuses(tmp_path: Path, name: str) -> None:
    """Opening refuses."""
    run(TinyPool(tmp_path / "pool", Payload("f16", "plain"), packed=True), 0, *OPENING[name])


@pytest.mark.parametrize("name", READING)
def test_reading_refuses(tmp_path: Path, name: str) -> None:
    """Opening passes, reading refuses."""
    run(TinyPool(tmp_path / "pool", Payload("f16", "plain"), packed=True), 1, *READING[name])


@pytest.mark.parametrize("name", VERIFYING)
def test_verify_refuses(tmp_path: Path, name: str) -> None:
    """Opening and reading pass, verify refuses."""
    run(TinyPool(tmp_path / "pool", Payload("f16", "plain"), packed=True), 2, *VERIFYING[name])


def u16(*values: int) -> bytes:
    """Make byte planes of uint16, one row of three (or two) repeated in four rows."""
    return planes(np.array([values] * 4, np.uint16))


CODECS: dict[str, tuple[int, str, Change, str]] = {
    "gaps": (1, "topk", label(0, gaps=u16(1, 2, 2)), "past the last class"),
    "gaps wrap": (1, "topk", label(0, gaps=u16(1, 65535, 1)), "past the last class"),
    "gaps tail": (1, "topk", label(0, gaps=u16(1, 2, 1) + b"x"), "after the last"),
    "order": (1, "topk", label(0, order=u16(0, 0, 65535)), "permutation"),
    "scale": (1, "topk", label(0, scale=planes(np.full(4, np.inf, np.float16))), "scale"),
    "scale below 0": (1, "topk", label(0, scale=planes(np.full(4, -1, np.float16))), "scale"),
    "tail": (1, "topk", label(0, tail=planes(np.full(4, np.nan, np.float32))), "tail"),
    "kind": (0, "topk", field("codec.parameters.label_kind", "probabilities"), "label_kind"),
    "k": (0, "topk", field("codec.parameters.k", C + 1), "parameters.k"),
    "value bits": (0, "topk", field("codec.parameters.value_bits", 24), "value_bits"),
    "plane size": (1, "f32", label(0, plane_3=frame(b"x" * 27)), "plane_3"),
    "infinite": (1, "f32", label(0, plane_3=frame(b"\x7f" * 28), plane_2=frame(b"\x80" * 28)), "NaN"),
    "layout": (0, "f32", field("codec.parameters.layout", "dense"), "layout"),
    "codec": (0, "f32", field("codec.name", "f64"), "codec.name"),
    "band": (1, "klt", label(0, band_1=b"pco!"), "band_1"),
    "mean": (0, "klt", table("mean.npy", npy(np.full(C, np.nan, np.float16))), "mean"),
    "basis": (0, "klt", table("basis.pco", b"x"), "basis"),
    "step": (0, "klt", field("codec.parameters.step", 0), "step"),
    "small step": (0, "klt", field("codec.parameters.step", 1e-60), "step"),
    "large step": (0, "klt", field("codec.parameters.step", 1e60), "step"),
    "one edge": (0, "klt", field("codec.parameters.edges", [0]), "edges"),
    "many edges": (0, "klt", field("codec.parameters.edges", [0, C + 2]), "above C"),
    "table": (0, "klt", field("codec.name", "int8"), "codec tables"),
    "edges": (0, "klt", field("codec.parameters.edges", [0, 4, 3]), "edges"),
    "left-over bits": (1, "int4", label(0, codes=b"\xff" * 4), "left-over"),
    "negative scale": (1, "int8", label(0, scale=-1.0), "scale"),
    "overflow": (1, "int8", label(0, scale=3e38, codes=b"\xff" * 7), "NaN or infinite"),
}


@pytest.mark.parametrize("name", CODECS)
def test_codecs_refuse(tmp_path: Path, name: str) -> None:
    """Payloads and parameters out of range are refused."""
    step, codec, change, match = CODECS[name]
    run(
        TinyPool(tmp_path / "pool", Payload(codec, "compact" if codec == "f32" else None)),
        step,
        change,
        match,
    )
