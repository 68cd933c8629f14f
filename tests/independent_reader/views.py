"""Views of a batch, as rows of a views file: their checks and their digest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import numpy as np

from .files import need
from .parquet import Row
from .tables import is_strength

CROP = ("crop_top", "crop_left", "crop_height", "crop_width")
MIX_BOX = ("mix_top", "mix_left", "mix_bottom", "mix_right")
CUTOUT = ("cutout_top", "cutout_left", "cutout_bottom", "cutout_right")
FILL = ("cutout_red", "cutout_green", "cutout_blue")
_NULL_TOGETHER = (("mix_slot", "mix_strength"), MIX_BOX, (*CUTOUT, *FILL), ("patch_order",))
_SQUARES = {n * n for n in range(1, 16)}


def check_views(views: Sequence[Row], images: Sequence[Row], size: tuple[int, int], where: str) -> None:
    """Refuse views out of range. `size`: height and width of a view."""
    for names in _NULL_TOGETHER:
        nulls = {row[name] is None for row in views for name in names}
        need(len(nulls) == 1, where, f"{names} are null in part")
    first = views[0]
    need(first["mix_top"] is None or first["mix_slot"] is not None, where, "a mix box without a partner")
    for slot, row in enumerate(views):
        need(row["slot"] == slot, where, "slots do not count 0, 1, 2, ...")
        need(0 <= row["image"] < len(images), where, f"image {row['image']}")
        image = images[row["image"]]
        top, left, height, width = (row[name] for name in CROP)
        need(top >= 0 and left >= 0 and height >= 1 and width >= 1, where, "crop out of range")
        need(
            top + height <= image["height"] and left + width <= image["width"], where, "crop leaves its image"
        )
        if row["mix_slot"] is not None:
            need(0 <= row["mix_slot"] < len(views), where, f"partner {row['mix_slot']}")
            need(is_strength(row["mix_strength"]), where, f"mix_strength {row['mix_strength']}")
            same = all(row[name] == first[name] for name in ("mix_strength", *MIX_BOX))
            need(same, where, "mix strength or box differs within the batch")
        for box in (MIX_BOX, CUTOUT):
            if row[box[0]] is not None:
                top, left, bottom, right = (row[name] for name in box)
                need(
                    0 <= top <= bottom <= size[0] and 0 <= left <= right <= size[1],
                    where,
                    f"{box} out of range",
                )
        order = row["patch_order"]
        if order is not None:
            need(len(order) in _SQUARES and len(order) == len(first["patch_order"]), where, "patch_order")
            need(sorted(order) == list(range(len(order))), where, "patch_order is not a permutation")


def views_digest(views: Sequence[Row]) -> bytes:
    def packed(kind: str, *names: str) -> bytes:
        return np.array([[row[name] for name in names] for row in views]).astype(kind).tobytes()

    first = views[0]
    mixed, boxed, cut = (first[name] is not None for name in ("mix_slot", "mix_top", "cutout_top"))
    mix_kind = (1 if boxed else 2) if mixed else 0
    flags = cut + 2 * len(first["patch_order"] or ())
    digest = hashlib.sha256(struct.pack("<5q", first["epoch"], first["batch"], len(views), mix_kind, flags))
    digest.update(packed("<i4", "image") + packed("<i4", *CROP) + packed("u1", "flip"))
    if mixed:
        digest.update(packed("<i4", "mix_slot") + struct.pack("<d", first["mix_strength"]))
    if boxed:
        digest.update(struct.pack("<4q", *(first[name] for name in MIX_BOX)))
    if cut:
        digest.update(packed("<i4", *CUTOUT) + packed("u1", *FILL))
    for row in views:
        digest.update(bytes(row["patch_order"] or ()))
    return digest.digest()
