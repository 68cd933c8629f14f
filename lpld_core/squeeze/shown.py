"""What a squeeze shows the teacher: views of real images, batch by batch, in an order keyed by the seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from torch import Tensor

from lpld_core.images import Pixels, RealFolder, centre_view, labelled_batches, random_view, shuffled_rows
from lpld_core.squeeze.settings import SqueezeSettings
from lpld_core.teachers.teacher import LoadedTeacher
from lpld_labels.format.random_streams import Stream, keyed_generator

Rows = npt.NDArray[np.int64]


def shown_batches(
    teacher: LoadedTeacher,
    folder: RealFolder,
    settings: SqueezeSettings,
    *,
    done: int,
    choose: Callable[[Rows], Rows] = lambda rows: rows,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the normalised views float32 [B, 3, H, W] and labels int64 [B] of all passes but for `done`.

    choose: takes some of the rows of a pass, as many in each.
    """
    for number in range(settings.passes):

        def show(row: int, image: Pixels, number: int = number) -> Tensor:
            if settings.views == "centre":
                return centre_view(image, teacher.input_size)
            # Keyed by pass and image: neither threads nor the order of the images change a view.
            draws = keyed_generator(settings.seed, Stream.SQUEEZE_VIEWS, number, row, 0)
            return random_view(image, teacher.input_size, draws)

        rows = choose(shuffled_rows(folder, settings.seed, number))
        per_pass = -(-len(rows) // settings.batch_size)
        if done >= (number + 1) * per_pass:
            continue
        first = max(0, done - number * per_pass) * settings.batch_size
        yield from labelled_batches(
            folder,
            rows[first:],
            show,
            mean=teacher.mean,
            std=teacher.std,
            batch_size=settings.batch_size,
        )
