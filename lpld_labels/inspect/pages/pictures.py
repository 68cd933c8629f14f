"""Pictures inside a page, as text."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence

from PIL import Image

from lpld_labels.inspect.pages.markup import Markup, shortened, tag


def jpeg_uri(picture: Image.Image, quality: int) -> str:
    """Return an RGB picture as a data URI; colours keep their full resolution."""
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=quality, subsampling=0, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def strip(name: str, pictures: Sequence[tuple[str, str]]) -> Markup:
    """Return pictures (data URI, what it is) in a row that wraps, with a name."""
    images = [tag("img", src=uri, alt=shortened(says)) for uri, says in pictures]
    return tag("figure", tag("figcaption", shortened(name)), tag("div", *images, class_="sheet"))
