"""Decoding against replaying, and fitting ten thousand classes."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.common.harness import interleaved, peak_memory_mb
from benchmarks.common.photos import photo_folder
from benchmarks.rate_distortion.measure import MILLION, RateDistortion
from lpld_labels import Augmentation
from lpld_labels.codecs.fidelity import try_codec
from lpld_labels.codecs.klt_fit import KltFitter
from lpld_labels.format.random_streams import keyed_generator
from lpld_labels.format.records import LabelArray

FEATURES = 512
BATCH = 128


def decode_against_replay(curve: RateDistortion, images: Path | None, *, runs: int) -> dict[str, Any]:
    """Time decoding one klt batch (step 1) against replaying 128 images of 224 pixels, on one thread.

    images: photos to replay, those of packages if not given.
    """
    import torch

    from lpld_labels.render import ImageStore, apply_views, draw_views, normalise
    from lpld_labels.render.images import FolderImages, scan_image_folder

    augmentation = Augmentation(
        output_height=224,
        output_width=224,
        resize="torch",
        crop_scale=(0.08, 1.0),
        crop_ratio=(3 / 4, 4 / 3),
        flip_probability=0.5,
        mix="cutmix",
        mix_alpha=1.0,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = photo_folder(Path(name), side=224, count=BATCH, images=images)
        table = scan_image_folder(folder)
        store = ImageStore(FolderImages(folder, table))
        for index in range(len(store)):
            store[index]
    views = draw_views(augmentation, table, seed=0, epoch=0, batch=0, batch_size=BATCH)
    codec, labels = curve.codec, curve.sample
    payload = codec.encode(labels).payload

    def replay() -> object:
        pixels = apply_views(views, store, augmentation)
        return normalise(pixels, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            timings = interleaved(
                {
                    "decode": partial(
                        codec.decode, payload, rows=len(labels), classes=labels.shape[1], dtype=np.float32
                    ),
                    "replay": replay,
                },
                runs=runs,
            )
    finally:
        torch.set_num_threads(threads)
    per_image = {
        "decode": timings["decode"].median / len(labels),
        "replay": timings["replay"].median / views.rows,
    }
    return {
        "coefficients": len(codec.basis),
        "rows_decoded": len(labels),
        "images_replayed": views.rows,
        "share": round(per_image["decode"] / per_image["replay"], 4),
        "decode": timings["decode"].as_json(),
        "replay": timings["replay"].as_json(),
    }


def many_classes(*, classes: int, rows: int) -> dict[str, Any]:
    """Fit klt to logits of a random head on features like a network's, and measure it on other rows.

    Features are what average pooling after ReLU gives: positive, skewed, with a falling spectrum.
    """
    blocks = _linear_head(classes, rows)
    held = max(2, len(blocks) // 16)
    start, cpu = time.perf_counter(), time.process_time()
    fitter = KltFitter(
        fit=blocks[2 * held :], tune=blocks[:held], rows=MILLION, batch_size=BATCH, label_kind="logits"
    )
    codec = fitter.for_fidelity(0.97, temperature=20)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    trial = try_codec(codec, blocks[held : 2 * held], batch_size=BATCH)
    tables = sum(map(len, codec.tables().values()))
    total = trial.payload_per_row + tables / MILLION
    return {
        "classes": classes,
        "rows_fitted": sum(map(len, blocks[2 * held :])),
        "rows_measured": trial.fidelity.rows,
        "fit_seconds": round(seconds, 1),
        "fit_cpu_seconds": round(cpu, 1),
        "peak_memory_mb": round(peak_memory_mb()),
        "coefficients": len(codec.basis),
        "payload_per_row": round(trial.payload_per_row, 1),
        "table_bytes": tables,
        "total_per_row_at_1m": round(total, 1),
        "smaller_than_fp16": round(2 * classes / total, 1),
        **trial.fidelity.as_json(),
    }


def _linear_head(classes: int, rows: int) -> list[LabelArray]:
    random = keyed_generator(0, classes)
    mixing = random.standard_normal((FEATURES, FEATURES), np.float32)
    mixing *= (np.arange(1, FEATURES + 1, dtype=np.float32) ** -0.5)[:, None]
    head = random.standard_normal((FEATURES, classes), np.float32)
    scale = 0.0
    blocks = []
    for _ in range(rows // BATCH):
        features = np.maximum(random.standard_normal((BATCH, FEATURES), np.float32) @ mixing, 0)
        logits = features @ head
        # As real logits: a standard deviation of about 2.
        scale = scale or 2 / float(logits.std())
        blocks.append((logits * scale).astype(np.float16))
    return blocks
