"""Render pages from templates/. A page is one HTML file that loads nothing and runs only its own script.

HTML in names of classes, files and teachers is escaped and shown as text.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpld_labels.errors import InvalidArgumentError, PoolConflictError
from lpld_labels.inspect.text import human_bytes, shortened
from lpld_labels.io.addresses import Location
from lpld_labels.io.storage import write_atomically
from lpld_labels.transforms.outputs import require_apart
from lpld_labels.version import __version__

if TYPE_CHECKING:
    from jinja2 import Environment
    from PIL import Image

MOST_BYTES = 5_000_000
_GENERATOR = b'name="generator" content="lpld-labels '
_HEAD_BYTES = 4096
_NOT_IN_HTML = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


def render_page(template: str | Path, **content: Any) -> bytes:
    """Return an HTML file. template: a name in templates/, or the path of a file that extends page.html."""
    environment = template_environment()
    environment.filters |= {"short": shortened, "bytes": human_bytes}
    if isinstance(template, Path):
        found = environment.from_string(template.read_text(encoding="utf-8"))
    else:
        found = environment.get_template(template)
    style, script = _asset("page.css"), _asset("page.js")
    # Hashes, not 'unsafe-inline': even if foreign markup got into the page, it could not run.
    policy = (
        f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'"
    )
    html = found.render(policy=policy, style=style, script=script, version=__version__, **content)
    return _NOT_IN_HTML.sub("\ufffd", html).encode("utf-8")


def jpeg_uri(picture: Image.Image, quality: int) -> str:
    """Return an RGB picture as a data URI; colours keep their full resolution."""
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=quality, subsampling=0, optimize=True)
    return f"data:image/jpeg;base64,{base64.b64encode(stream.getvalue()).decode()}"


def require_page_place(path: Path, *inputs: Location) -> None:
    """Raise if a path overlaps an input, or holds anything but a page that lpld-labels wrote."""
    require_apart(path, *inputs)
    ours = not path.exists()
    if path.is_file():
        with path.open("rb") as stream:
            ours = _GENERATOR in stream.read(_HEAD_BYTES)
    if not ours:
        raise PoolConflictError(
            "this is not a page that lpld-labels wrote",
            where=path,
            hint="choose another path, or move the file away: only pages are replaced",
        )


def save_page(path: Path, data: bytes) -> None:
    """Write a page; refuse one that is too large to open quickly."""
    require_page_place(path)
    if len(data) > MOST_BYTES:
        raise InvalidArgumentError(
            "the page is too large", where=path, expected=f"at most {MOST_BYTES} bytes", got=len(data)
        )
    write_atomically(path, data)


def template_environment(**options: Any) -> Environment:
    """Return the Jinja environment of templates/, which escapes HTML. options: further settings for Jinja."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    return Environment(
        loader=PackageLoader("lpld_labels.inspect"),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def _asset(name: str) -> str:
    return (files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
