"""One view as a picture to look at, without torch.

Labelling and training make pixels with `apply_views` and nothing else. Importing torch takes seconds and more
memory than a whole report, so what people look at is made here, in the same order of steps with Pillow's
resizing: the same pixels where Pillow labelled the pool, and within two grey levels of them where torch did,
which rounds its weights otherwise. A picture file loses more than that.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.bounds import check_bounds
from lpld_labels.format.manifest import Augmentation
from lpld_labels.format.records import ViewBatch
from lpld_labels.render.patches import shuffle_patches
from lpld_labels.render.store import ImageStore

Pixels = npt.NDArray[np.uint8]

FILTERS = {
    "pil": Image.Resampling.BILINEAR,
    "pil_bicubic": Image.Resampling.BICUBIC,
    "torch": Image.Resampling.BILINEAR,
}
"""Name of a resize backend (`Augmentation.resize`) -> Pillow's filter that does the same."""


def view_picture(views: ViewBatch, slot: int, store: ImageStore, augmentation: Augmentation) -> Pixels:
    """Return the pixels of one view of a batch, mixed: uint8 [height, width, 3]."""
    if augmentation.resize not in FILTERS:
        raise InvalidArgumentError(
            "unknown resize backend",
            expected=f"one of {', '.join(FILTERS)}",
            got=augmentation.resize,
            hint="upgrade lpld-labels if a newer version wrote this pool",
        )
    check_bounds(views, store.table, augmentation)
    own = _plain(views, slot, store, augmentation)
    if views.mix is None:
        return own
    other = _plain(views, int(views.mix.partner[slot]), store, augmentation)
    box = views.mix.box
    if box is None:
        strength = views.mix.strength
        mixed = own.astype(np.float32) * strength + other.astype(np.float32) * (1.0 - strength)
        return np.asarray(np.rint(mixed), np.uint8)
    own[box.top : box.bottom, box.left : box.right] = other[box.top : box.bottom, box.left : box.right]
    return own


def _plain(views: ViewBatch, slot: int, store: ImageStore, augmentation: Augmentation) -> Pixels:
    """Return a view up to its cut-out, in memory of its own."""
    image = store[int(views.images[slot])]
    if views.patch_order is not None:
        image = shuffle_patches(image, views.patch_order[slot])
    top, left, rows, columns = views.crops[slot].tolist()
    crop = Image.fromarray(np.ascontiguousarray(image[top : top + rows, left : left + columns]))
    size = (augmentation.output_width, augmentation.output_height)
    view: Pixels = np.array(crop.resize(size, FILTERS[augmentation.resize]))
    if views.flips[slot]:
        view = np.ascontiguousarray(view[:, ::-1])
    if views.cutout is not None:
        above, before, below, after = views.cutout.boxes[slot].tolist()
        view[above:below, before:after] = views.cutout.fill[slot]
    return view
