"""Whether two squeezes are the same: by settings, teacher and images.

Images count by path, size and date, because reading all of them would take as long as the squeeze. So images
that were replaced by others of the same size are noticed, and a copy with new dates is taken for changed too:
nobody can tell without reading it. Dates are compared where a squeeze goes on (those of a group's own
classes, where it is gathered by groups) and where its file is there already, and nowhere else. Records of
older versions have none, and count without.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lpld_core.unfinished import require_same_job
from lpld_labels.errors import PoolConflictError

IMAGE_DATES = "image_dates"
"""Field of a squeeze's job: a digest over the dates of all images."""


def is_same_squeeze(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether what is found was decided by what is wanted."""
    return _dateless(found) == _dateless(wanted) and not _dates_differ(found, wanted)


def refuse_changed_images(
    found: Mapping[str, Any], wanted: Mapping[str, Any], *, since: str, where: Path, otherwise: str
) -> None:
    """Raise PoolConflictError if only the images' dates differ.

    since: what they were then, as people say it. otherwise: what one may do, if the images are the same.
    """
    if _dateless(found) == _dateless(wanted) and _dates_differ(found, wanted):
        raise PoolConflictError(
            f"images were changed, or copied, since {since}",
            where=where,
            expected="the dates that their files had",
            hint=f"{otherwise}, choose another output, or begin anew (--overwrite)",
        )


def require_same_squeeze(found: Mapping[str, Any], wanted: Mapping[str, Any], *, where: Path) -> None:
    """Raise PoolConflictError if unfinished work is not this squeeze's."""
    require_same_job(
        _dateless(found),
        _dateless(wanted),
        what="an unfinished squeeze",
        where=where,
        otherwise="begin anew (--overwrite)",
    )
    refuse_changed_images(
        found,
        wanted,
        since="an unfinished squeeze of them began",
        where=where,
        otherwise="finish it with the images it began with",
    )


def _dateless(job: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in job.items() if name != IMAGE_DATES}


def _dates_differ(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return IMAGE_DATES in found and found[IMAGE_DATES] != wanted.get(IMAGE_DATES)
