"""Write `benchmarks/data/in1k_logits` from the arrays it was measured as.

    python -m benchmarks.data.make_in1k_logits ARRAYS.npz OUT

1,000 photos of ImageNet-1K, one per class, were brought to 224 px and labelled by EfficientNet-Lite0 in 42
batches of 128 views, as SRe2L's relabelling program draws them: RandomResizedCrop (area 0.08 to 1), flip,
then CutMix within the batch. The arrays, one entry per batch:

    logits    float16 [42, 128, 1000]
    crop      float32 [42, 128, 4]   top, left, height, width as shares of 224 px: whole pixels
    flip      bool    [42, 128]
    mix_slot  int16   [42, 128]      whose patch is pasted in
    lam       float32 [42]           the raw Beta(1, 1) draw
    box       int16   [42, 4]        top, left, bottom, right of the patch in pixels
    image     int32   [42, 128]      number of the photo; photo N is of class N
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lpld_labels import (
    Augmentation,
    BatchKey,
    Box,
    ImageTable,
    LabelBatch,
    Mix,
    PoolHeader,
    PoolWriter,
    Teacher,
)
from lpld_labels.codecs import codec_named

SIDE = 224
CLASSES = 1000
BATCH_SIZE = 128
PER_EPOCH = CLASSES // BATCH_SIZE


def write_pool(arrays: Mapping[str, npt.NDArray[Any]], out: Path) -> None:
    """Write the pool. An epoch has the whole batches that 1,000 photos make: 7."""
    sides = np.full(CLASSES, SIDE, np.int32)
    images = ImageTable(
        paths=[f"{number:04d}/0.jpg" for number in range(CLASSES)],
        classes=np.arange(CLASSES, dtype=np.int32),
        widths=sides,
        heights=sides,
        digests=[None] * CLASSES,
    )
    augmentation = Augmentation(
        output_height=SIDE,
        output_width=SIDE,
        resize="pil",
        crop_scale=(0.08, 1.0),
        crop_ratio=(3 / 4, 4 / 3),
        flip_probability=0.5,
        mix="cutmix",
        mix_alpha=1.0,
    )
    header = PoolHeader(
        classes=CLASSES,
        batch_size=BATCH_SIZE,
        augmentation=augmentation,
        teachers=(Teacher(name="efficientnet-lite0"),),
    )
    with PoolWriter(out, header=header, images=images, codec=codec_named("f16")) as writer:
        writer.extend(batches(arrays))
        writer.commit()


def batches(arrays: Mapping[str, npt.NDArray[Any]]) -> Iterator[LabelBatch]:
    """Yield the batches as they were measured."""
    for number in range(len(arrays["logits"])):
        yield LabelBatch(
            key=BatchKey(*divmod(number, PER_EPOCH)),
            images=arrays["image"][number],
            crops=np.rint(arrays["crop"][number] * SIDE).astype(np.int32),
            flips=arrays["flip"][number],
            mix=Mix(
                partner=arrays["mix_slot"][number].astype(np.int32),
                strength=float(arrays["lam"][number]),
                box=Box(*arrays["box"][number].tolist()),
            ),
            labels=arrays["logits"][number],
        )


def main() -> None:
    """Parse and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("arrays", type=Path, help="the measurement, .npz")
    parser.add_argument("out", type=Path, help="the pool to write")
    arguments = parser.parse_args()
    with np.load(arguments.arrays) as arrays:
        write_pool(dict(arrays), arguments.out)


if __name__ == "__main__":
    main()
