"""The card of a pool: README.md, rendered from templates/card.md and the manifest.

Text from a manifest is escaped for Markdown, or put into a code block or JSON by a filter of the template. So
it cannot change the structure of the card.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import FORMAT_VERSION, IMAGES_FILE
from lpld_labels.format.strict_json import is_text
from lpld_labels.inspect.page import template_environment
from lpld_labels.inspect.summary import COMPONENT_NAMES, PoolSummary, augmentation_words, step_words
from lpld_labels.inspect.text import human_bytes, printable

if TYPE_CHECKING:
    from jinja2 import Environment

_LICENCE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")


def card_text(
    manifest: Manifest,
    *,
    name: str,
    licence: str | None = None,
    classes: Sequence[str] | None = None,
    recipe: Sequence[str] = (),
) -> str:
    """Return a pool's card. licence: its identifier on Hugging Face. recipe: commands that make the pool."""
    if not is_text(name):
        raise InvalidArgumentError(
            "invalid pool name", expected="valid UTF-8", got=repr(name), hint="give a different name (--name)"
        )
    if licence is not None and not _LICENCE.fullmatch(licence):
        raise InvalidArgumentError(
            "invalid licence name", expected="a name such as cc-by-4.0, mit or other", got=licence
        )
    summary = PoolSummary(location=name, manifest=manifest)
    sizes = {COMPONENT_NAMES[part]: size for part, size in summary.components.items() if size}
    sizes["all"] = summary.total_bytes
    counts = manifest.counts
    template = _environment().get_template("card.md")
    return template.render(
        manifest=manifest,
        name=printable(name),
        licence=licence,
        complete=counts.batches - counts.incomplete_batches,
        classes=classes,
        packed=bool(manifest.files_of("packed")),
        configs=_configs(manifest),
        augmentation=augmentation_words(manifest.header.augmentation),
        recipe="\n".join(recipe),
        fidelities=_fidelities(manifest),
        sizes=[(part, human_bytes(size)) for part, size in sizes.items()],
        format_version=FORMAT_VERSION,
    )


def class_folders(table: ImageTable) -> list[str] | None:
    """Return the folder of each class; None unless every class has exactly one folder of its own."""
    folders = [path.rpartition("/")[0].partition("/")[0] for path in table.paths]
    pairs = sorted(set(zip(table.classes.tolist(), folders, strict=True)))
    names = [folder for _, folder in pairs]
    one_each = [label for label, _ in pairs] == list(range(len(pairs)))
    return names if one_each and all(names) and len(set(names)) == len(names) else None


def _configs(manifest: Manifest) -> dict[str, str]:
    found = {"views": "views/*.parquet"} if manifest.views == "stored" else {}
    found["images"] = "packed/*.parquet" if manifest.files_of("packed") else IMAGES_FILE
    if manifest.codec.parameters.get("layout") == "plain":
        found["labels"] = "labels/*.parquet"
    if manifest.files_of("packed"):
        found["image_table"] = IMAGES_FILE
    return found


def _fidelities(manifest: Manifest) -> list[tuple[str, str, str, str]]:
    """Return what each lineage step measured: codec, information kept, top-1 agreement, rows."""
    rows = []
    for step in manifest.header.lineage:
        found: Any = step.parameters.get("fidelity")
        if isinstance(found, dict) and isinstance(found.get("kept"), dict):
            kept = ", ".join(f"T = {t}: {value}" for t, value in found["kept"].items())
            codec = step_words(step).get("codec", manifest.codec.name)
            rows.append((codec, kept, str(found.get("top1")), str(found.get("rows"))))
    return rows


class _Markdown(str):
    """Text that already is Markdown, so it must not be escaped."""

    __slots__ = ()


def _escaped(value: object) -> str:
    if isinstance(value, _Markdown):
        return value
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(printable(str(value)), quote=False))


def _fenced(code: str, language: str) -> _Markdown:
    """Return a code block with a fence longer than any in the code."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return _Markdown(f"{fence}{language}\n{code.strip()}\n{fence}")


def _environment() -> Environment:
    environment = template_environment(finalize=_escaped, keep_trailing_newline=True)
    environment.filters |= {
        "code": lambda text: _Markdown("`" + printable(text).replace("`", "'") + "`"),
        "fenced": _fenced,
        "json": lambda text: _Markdown(json.dumps(printable(text))),
        "markdown": _Markdown,
        "numbers": lambda values: "unknown" if values is None else ", ".join(f"{v:g}" for v in values),
        "thousands": lambda number: f"{number:,}",
    }
    return environment
