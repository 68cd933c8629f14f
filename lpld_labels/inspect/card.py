"""The card of a pool: README.md, which tells people and the Hugging Face hub what they have before them.

Made from the manifest alone. Whatever stands in it may come from anywhere, so nothing of it can leave the
cell or code block that it is put into.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lpld_labels.errors import InvalidArgumentError
from lpld_labels.format.images import ImageTable
from lpld_labels.format.manifest import Manifest
from lpld_labels.format.schema import FORMAT_VERSION, IMAGES_FILE, Component
from lpld_labels.format.strict_json import is_text
from lpld_labels.inspect.pages.numbers import human_bytes
from lpld_labels.inspect.recipe import printable, recipe
from lpld_labels.inspect.settings import augmentation_of

TAGS = ("dataset-distillation", "soft-labels", "knowledge-distillation", "lpld-label-pool")
_LICENSE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,63}")
_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")
COMPONENT_WORDS: Mapping[Component, str] = {
    "labels": "labels",
    "codec": "codec tables",
    "crop": "crops",
    "flip": "flips",
    "mix_index": "mixing partners",
    "mix_strength": "mixing strengths",
    "mix_box": "mixing boxes, cut-outs, patch orders",
    "keys": "keys",
    "packed": "images",
    "container": "container: index, image table, footers, manifest",
}


@dataclass(frozen=True, kw_only=True)
class CardSettings:
    """What a manifest does not say.

    name: what to call the pool. license: as Hugging Face spells it. classes: their names, if there are any.
    """

    name: str
    license: str | None = None
    classes: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not is_text(self.name):
            raise InvalidArgumentError(
                "this is no name of a pool",
                expected="text",
                got=repr(self.name),
                hint="give another (--name)",
            )
        if self.license is not None and not _LICENSE.fullmatch(self.license):
            raise InvalidArgumentError(
                "this is no name of a licence",
                expected="one such as cc-by-4.0, mit or other",
                got=self.license,
            )


def card_text(manifest: Manifest, settings: CardSettings) -> str:
    """Return the card of a pool."""
    name = printable(settings.name)
    sections = [
        _front(manifest, settings),
        f"# {_plain(name)}\n\n{_lead(manifest)}",
        _section("Load it", _loading(manifest, name)),
        _section("Verify it", _verifying(manifest, name)),
        _section("How it was made", _made(manifest)),
        _section("Teachers", _teachers(manifest)),
        _section("What was kept of the labels", _fidelity(manifest)),
        _section("Bytes", _bytes(manifest)),
        _section("Identity", _identity(manifest)),
    ]
    return "\n\n".join(sections) + "\n"


def configs(manifest: Manifest) -> dict[str, str]:
    """Return which files `datasets` shows under which name."""
    found = {}
    if manifest.views == "stored":
        found["views"] = "views/*.parquet"
    found["images"] = "packed/*.parquet" if manifest.files_of("packed") else IMAGES_FILE
    if manifest.codec.parameters.get("layout") == "plain":
        found["labels"] = "labels/*.parquet"
    if manifest.files_of("packed"):
        found["image_table"] = IMAGES_FILE
    return found


def size_category(rows: int) -> str:
    """Return the hub's word for so many rows."""
    if rows < 1000:
        return "n<1K"
    power = min(len(str(rows)) - 4, len(_SIZES) - 1)
    return f"n>{_SIZES[-1]}" if power == len(_SIZES) - 1 else f"{_SIZES[power]}<n<{_SIZES[power + 1]}"


def _front(manifest: Manifest, settings: CardSettings) -> str:
    """Return the YAML block; strings are written as JSON, which YAML reads."""
    lines = ["---"]
    if settings.license is not None:
        lines.append(f"license: {json.dumps(settings.license.lower())}")
    lines += [f"pretty_name: {json.dumps(printable(settings.name))}", "task_categories:"]
    lines += ["- image-classification", "tags:", *(f"- {tag}" for tag in TAGS), "size_categories:"]
    lines += [f"- {size_category(manifest.counts.rows)}", "configs:"]
    for number, (config, files) in enumerate(configs(manifest).items()):
        lines += [f"- config_name: {config}", f"  data_files: {json.dumps(files)}"]
        lines += ["  default: true"] if number == 0 else []
    if manifest.files_of("packed"):
        lines += _features(settings.classes)
    return "\n".join([*lines, "---"])


def _features(classes: Sequence[str] | None) -> list[str]:
    """Return what makes the hub and `datasets` show packed images as pictures, and classes by their names."""
    lines = ["dataset_info:", "- config_name: images", "  features:", "  - name: row", "    dtype: int32"]
    lines += ["  - name: image", "    dtype: image", "  - name: class"]
    if classes is None:
        return [*lines, "    dtype: int32"]
    names = [f"          '{number}': {json.dumps(printable(name))}" for number, name in enumerate(classes)]
    return [*lines, "    dtype:", "      class_label:", "        names:", *names]


def class_folders(table: ImageTable) -> list[str] | None:
    """Return the folder of each class; None unless every class has one and no two the same."""
    folders: dict[int, str] = {}
    for label, path in zip(table.classes.tolist(), table.paths, strict=True):
        folder = path.split("/", 1)[0] if "/" in path else ""
        if folders.setdefault(label, folder) != folder or not folder:
            return None
    whole = sorted(folders) == list(range(len(folders)))
    distinct = len(set(folders.values())) == len(folders)
    return [folders[label] for label in sorted(folders)] if whole and distinct else None


def _lead(manifest: Manifest) -> str:
    counts, header = manifest.counts, manifest.header
    inside = "The images are inside." if manifest.files_of("packed") else "The images are not inside."
    return (
        f"A label pool: {counts.rows:,} soft labels ({header.label_kind}, {header.classes:,} classes, codec "
        f"`{_code(manifest.codec.name)}`) of augmented views of {counts.images:,} images, in "
        f"{counts.batches:,} batches of {header.batch_size:,}. {inside} It is Parquet and one JSON manifest; "
        "`lpld-labels` reads and checks it, DuckDB, Polars and `datasets` read its tables."
    )


def _loading(manifest: Manifest, name: str) -> str:
    images = "" if manifest.files_of("packed") else ', "IMAGES"'
    code = (
        "from lpld_labels.loader import pool_loader\n"
        f"for batch in pool_loader({json.dumps(name)}{images}, batch_size=64):\n"
        "    batch.images, batch.labels  # what the teacher saw, and what it said"
    )
    tables = [f'datasets.load_dataset({json.dumps(name)}, "{config}")' for config in configs(manifest)]
    as_tables = _fenced("\n".join(["import datasets", *tables]), "python")
    return f"{_fenced(code, 'python')}\n\nAs tables:\n\n{as_tables}"


def _verifying(manifest: Manifest, name: str) -> str:
    lines = ["pip install 'lpld-labels[torch]'", f"lpld-labels verify {json.dumps(name)}"]
    teachers = " ".join(f"--teacher {json.dumps(printable(t.name))}" for t in manifest.header.teachers)
    if teachers:
        images = "" if manifest.files_of("packed") else " --images IMAGES"
        lines.append(f"lpld-labels verify {json.dumps(name)}{images} {teachers}")
    says = "The first compares every byte with the digests below; the second labels some batches again."
    return f"{_fenced(chr(10).join(lines), 'sh')}\n\n{says}"


def _made(manifest: Manifest) -> str:
    how = _plain(augmentation_of(manifest.header.augmentation))
    return (
        f"Views: {how}.\n\nThese commands make it again; capital words stand for paths.\n\n"
        f"{_fenced(chr(10).join(recipe(manifest)), 'sh')}"
    )


def _teachers(manifest: Manifest) -> str:
    header = manifest.header
    if not header.teachers:
        return "Not recorded."
    rows = [
        (t.name, t.weights_digest or "unknown", _numbers(t.mean), _numbers(t.std)) for t in header.teachers
    ]
    rule = f"\n\nTogether: {_plain(header.ensemble)}." if header.ensemble else ""
    return _table(("network", "SHA-256 of the weights", "mean", "std"), rows) + rule


def _fidelity(manifest: Manifest) -> str:
    rows = list(_measured(manifest))
    if not rows:
        return "Nothing was encoded after labelling: labels are as the codec first stored them."
    note = "Kept is 1 - KL(p||q) / KL(p||uniform) at a temperature T, against the pool before that step."
    return f"{_table(('codec', 'kept', 'same strongest class', 'rows'), rows)}\n\n{note}"


def _measured(manifest: Manifest) -> Iterator[tuple[str, str, str, str]]:
    """Yield what each encode measured, as far as lineage says so in the usual way."""
    for step in manifest.header.lineage:
        found: Any = step.parameters.get("fidelity") if step.operation == "encode" else None
        if isinstance(found, dict) and isinstance(found.get("kept"), dict):
            kept = ", ".join(f"T = {t}: {value}" for t, value in found["kept"].items())
            yield str(step.parameters.get("codec")), kept, str(found.get("top1")), str(found.get("rows"))


def _bytes(manifest: Manifest) -> str:
    sizes = dict(manifest.components)
    sizes["container"] += len(manifest.dump())
    rows = [(COMPONENT_WORDS[name], human_bytes(size)) for name, size in sizes.items() if size]
    return _table(("component", "size"), [*rows, ("all", human_bytes(sum(sizes.values())))])


def _identity(manifest: Manifest) -> str:
    rows = [
        ("content digest", manifest.content_digest),
        ("format", f"lpld-label-pool, version {FORMAT_VERSION}"),
        ("written by", manifest.created_by),
    ]
    return _table(("", ""), rows)


def _section(heading: str, text: str) -> str:
    return f"## {heading}\n\n{text}"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(headers), " | ".join("---" for _ in headers)]
    lines += [" | ".join(_plain(cell) for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _fenced(code: str, language: str) -> str:
    """Return a code block with a fence that the code does not hold."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{code}\n{fence}"


def _plain(text: str) -> str:
    """Return a text that Markdown shows as it is, on one line."""
    return re.sub(r"([\\`*_\[\]|#~])", r"\\\1", html.escape(printable(text), quote=False))


def _code(text: str) -> str:
    return printable(text).replace("`", "'")


def _numbers(values: Sequence[float] | None) -> str:
    return "unknown" if values is None else ", ".join(f"{value:g}" for value in values)
