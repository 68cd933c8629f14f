"""The manifest: JSON within limits, fields of the right types, and what must hold between them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import FileEntry, Refused, need, regular_file

NAME = "pool.json"
_COMPONENTS = (
    "crop",
    "flip",
    "mix_index",
    "mix_strength",
    "mix_box",
    "labels",
    "codec",
    "packed",
    "keys",
    "container",
)
_COUNTS = ("epochs", "batches", "incomplete_batches", "rows")
_COVERAGE = ("minimum", "maximum", "images", "classes")
_FILE_NAME = r"(?!\.)[A-Za-z0-9_.\-]{1,128}"
_PATHS = {
    "batches": r"batches-[0-9a-f]{8}\.parquet",
    "images": r"images\.parquet",
    "views": rf"views/{_FILE_NAME}\.parquet",
    "labels": rf"labels/{_FILE_NAME}\.parquet",
    "codec": rf"codec/{_FILE_NAME}",
    "packed": rf"packed/{_FILE_NAME}\.parquet",
}
_CAPITALS = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
Check = Callable[[Any, str], Any]
"""Takes a JSON value and its place; returns the value, or refuses it."""


def folded(path: str) -> str:
    return path.translate(_CAPITALS)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    need(len(dict(pairs)) == len(pairs), NAME, "a field occurs twice")
    return dict(pairs)


def _whole(digits: str) -> int:
    float(int(digits))  # raises OverflowError where float64 cannot hold it
    return int(digits)


def _depth(value: Any) -> int:
    if not isinstance(value, dict | list):
        return 0
    items = value.values() if isinstance(value, dict) else value
    return 1 + max(map(_depth, items), default=0)


def _parse(data: bytes) -> Any:
    need(len(data) <= 2**24, NAME, "too large")
    try:
        document = json.loads(data.decode(), object_pairs_hook=_object, parse_int=_whole)
        json.dumps(
            document, ensure_ascii=False, allow_nan=False
        ).encode()  # refuses NaN, 1e999, lone surrogates
        need(_depth(document) <= 32, NAME, "nested too deep")
    except (ValueError, OverflowError, RecursionError) as error:
        raise Refused(f"{NAME}: {error}") from error
    return document


def _accept(test: Callable[[Any], object], why: str) -> Check:
    def check(value: Any, where: str) -> Any:
        need(test(value), where, why)
        return value

    return check


def integer(low: int = 0, high: int = 2**63 - 1) -> Check:
    """Take an integer within bounds; `true` and 1.0 are not integers."""
    return _accept(lambda value: type(value) is int and low <= value <= high, f"not from {low} to {high}")


def string(*choices: str) -> Check:
    return _accept(
        lambda value: isinstance(value, str) and (not choices or value in choices), "not a known string"
    )


number = _accept(lambda value: type(value) in (int, float), "not a number")
digest = _accept(
    lambda value: isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value), "not a SHA-256"
)
anything = _accept(lambda value: isinstance(value, dict), "not an object")


def nullable(check: Check) -> Check:
    return lambda value, where: None if value is None else check(value, where)


def list_of(check: Check, least: int = 0, most: int = 10**6) -> Check:
    def check_items(value: Any, where: str) -> Any:
        need(isinstance(value, list) and least <= len(value) <= most, where, f"not {least} to {most} items")
        return [check(item, f"{where}[{number}]") for number, item in enumerate(value)]

    return check_items


def fields(checks: dict[str, Check], *, ignorable: bool = True) -> Check:
    """Take an object of exactly these fields and, if `ignorable`, others that need not be understood."""

    def check(value: Any, where: str) -> Any:
        need(isinstance(value, dict), where, "not an object")
        for name, extra in value.items():
            optional = isinstance(extra, dict) and extra.get("must_understand") is False
            need(name in checks or (ignorable and optional), f"{where} {name!a}", "unknown field")
        for name in checks:
            need(name in value, f"{where} {name}", "missing field")
        return {name: check(value[name], f"{where} {name}") for name, check in checks.items()}

    return check


_PAIR = nullable(list_of(number, 2, 2))
_RGB = nullable(list_of(number, 3, 3))
_TEACHER = fields({"name": string(), "weights_digest": nullable(digest), "mean": _RGB, "std": _RGB})
_STEP = fields({"operation": string(), "parent_digest": nullable(digest), "parameters": anything})
_AUGMENTATION = fields(
    dict.fromkeys(("output_height", "output_width"), integer(1, 65535))
    | dict.fromkeys(("crop_scale", "crop_ratio"), _PAIR)
    | dict.fromkeys(("flip_probability", "mix_alpha", "cutout_fraction"), nullable(number))
    | {"resize": string(), "mix": string("none", "cutmix", "mixup"), "patch_grid": nullable(integer(1, 15))}
)
_FILE = fields(
    {
        "path": string(),
        "role": string(*_PATHS),
        "bytes": integer(),
        "rows": integer(0, 2**40),
        "digest": digest,
    }
    | {"footer_bytes": nullable(integer(12, 2**24)), "footer_digest": nullable(digest)}
)
_MANIFEST = fields(
    {
        "format": string("lpld-label-pool"),
        "format_version": integer(1, 1),
        "classes": integer(2, 2**24),
        "batch_size": integer(1, 2**16),
        "label_kind": string("logits", "probabilities"),
        "seed": nullable(integer(0, 2**64 - 1)),
        "teachers": list_of(_TEACHER),
        "ensemble": nullable(string()),
        "augmentation": _AUGMENTATION,
        "views": string("stored", "drawn"),
        "lineage": list_of(_STEP),
        "codec": fields({"name": string(), "parameters": anything}),
        "counts": fields({"images": integer(0, 2**31 - 1)} | dict.fromkeys(_COUNTS, integer())),
        "coverage": fields({"median": number} | dict.fromkeys(_COVERAGE, integer())),
        "components": fields(dict.fromkeys(_COMPONENTS, integer())),
        "content_digest": digest,
        "files": list_of(_FILE),
        "created_by": string(),
    }
)


class Manifest:
    """A manifest that is consistent in itself. `fields`: its JSON, without what a reader may ignore."""

    def __init__(self, document: Any) -> None:
        need(isinstance(document, dict) and document.get("format_version") == 1, NAME, "not of version 1")
        self.fields: dict[str, Any] = _MANIFEST(document, NAME)
        self.classes: int = self.fields["classes"]
        self.batch_size: int = self.fields["batch_size"]
        self.label_kind: str = self.fields["label_kind"]
        self.drawn: bool = self.fields["views"] == "drawn"
        self.how: dict[str, Any] = self.fields["augmentation"]
        self.counts: dict[str, int] = self.fields["counts"]
        self.files = [FileEntry(**entry) for entry in self.fields["files"]]
        need(self.classes * self.batch_size <= 2**25, f"{NAME} batch_size", "batches are too large")
        for teacher in self.fields["teachers"]:
            mean, std = teacher["mean"], teacher["std"]
            need((mean is None) == (std is None), f"{NAME} mean, std", "only one is null")
            need(std is None or min(std) > 0, f"{NAME} std", "not above 0")
        if self.drawn:
            self._check_drawable()
        self._check_files()
        self._check_sums()

    def of_role(self, role: str) -> list[FileEntry]:
        return [entry for entry in self.files if entry.role == role]

    def _check_drawable(self) -> None:
        how, where = self.how, f"{NAME} augmentation"
        need(self.fields["seed"] is not None, f"{NAME} seed", "null though views are drawn")
        for name in ("crop_scale", "crop_ratio"):
            need(how[name] is None or 0 < how[name][0] <= how[name][1], f"{where} {name}", "not a range")
        need(how["crop_scale"] is None or how["crop_scale"][1] <= 1, f"{where} crop_scale", "above 1")
        flip, cutout = how["flip_probability"], how["cutout_fraction"]
        need(flip is None or 0 <= flip <= 1, f"{where} flip_probability", "not from 0 to 1")
        need(cutout is None or 0 < cutout <= 1, f"{where} cutout_fraction", "not above 0 and at most 1")
        need(how["mix"] == "none" or (how["mix_alpha"] or 0) > 0, f"{where} mix_alpha", "not above 0")

    def _check_files(self) -> None:
        where = f"{NAME} files"
        for entry in self.files:
            _check_entry(entry)
        paths = {folded(entry.path) for entry in self.files}
        need(len(paths) == len(self.files), where, "a path occurs twice")
        for role in ("batches", "images"):
            need(len(self.of_role(role)) == 1, where, f"not one file of role {role}")
        labels = [entry.path.removeprefix("labels/") for entry in self.of_role("labels")]
        views = [entry.path.removeprefix("views/") for entry in self.of_role("views")]
        need(views == ([] if self.drawn else labels), where, "views files are not those of the shards")

    def _check_sums(self) -> None:
        """Refuse what cannot be. The batch index proves the counts of batches and rows."""
        counts, coverage, components = self.counts, self.fields["coverage"], self.fields["components"]
        sizes = {role: sum(entry.bytes for entry in self.of_role(role)) for role in _PATHS}
        need(counts["batches"] <= sizes["labels"], f"{NAME} counts", "more batches than bytes of labels")
        need(counts["images"] <= 4 * sizes["images"], f"{NAME} counts", "more images than the table can hold")
        need(counts["images"] == self.of_role("images")[0].rows, f"{NAME} counts", "images")
        packed = self.of_role("packed")
        need(not packed or counts["images"] == sum(entry.rows for entry in packed), NAME, "packed images")
        low, high, images = coverage["minimum"], coverage["maximum"], counts["images"]
        need(low <= coverage["median"] <= high, f"{NAME} coverage", "median is not from minimum to maximum")
        need(low * images <= counts["rows"] <= high * images, f"{NAME} coverage", "does not fit the rows")
        need(coverage["images"] <= images, f"{NAME} coverage", "more images than there are")
        need(coverage["classes"] <= self.classes, f"{NAME} coverage", "more classes than there are")
        need(sum(components.values()) == sum(sizes.values()), f"{NAME} components", "not the files' bytes")
        for role in ("codec", "packed"):
            need(components[role] == sizes[role], f"{NAME} components", f"not the bytes of {role} files")


def _check_entry(entry: FileEntry) -> None:
    where = f"{NAME} {entry.path[:200]!a}"
    need(re.fullmatch(_PATHS[entry.role], entry.path), where, f"not a path of role {entry.role}")
    if entry.role == "codec":
        need(entry.footer_bytes is None and entry.footer_digest is None, where, "a codec table has no footer")
        need(entry.rows == 0, where, "a codec table has no rows")
    else:
        need(entry.footer_digest is not None, where, "no footer_digest")
        need(entry.footer_bytes is not None and entry.footer_bytes <= entry.bytes - 4, where, "footer_bytes")
    if entry.role == "batches":
        need(entry.path == f"batches-{entry.digest[:8]}.parquet", where, "not named after its digest")


def read_manifest(root: Path) -> Manifest:
    with regular_file(root, NAME).open("rb") as file:
        return Manifest(_parse(file.read(2**24 + 1)))
