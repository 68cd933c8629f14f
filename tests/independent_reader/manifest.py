"""The manifest: JSON within limits, fields of the right types, what must hold between them, and its files."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

Row = dict[str, Any]
NAME = "pool.json"
_MAX_BYTES = 2**24
_FILE_NAME = r"(?!\.)[A-Za-z0-9_.\-]{1,128}"
_PATHS = {"batches": r"batches-[0-9a-f]{8}\.parquet", "images": r"images\.parquet"}
_PATHS |= {"codec": f"codec/{_FILE_NAME}"}
_PATHS |= {role: rf"{role}/{_FILE_NAME}\.parquet" for role in ("views", "labels", "packed")}


class Refused(Exception):  # noqa: N818
    """A pool, or a part of it, that a reader must refuse."""


def need(condition: object, where: str, why: str) -> None:
    """Refuse unless the condition holds. `where`: the file, and the field or column."""
    if not condition:
        raise Refused(f"{where}: {why}")


def regular_file(root: Path, path: str) -> Path:
    """Return a file of the pool; refuse what is missing, not a regular file, or a link out of the pool."""
    real = (root / path).resolve()
    need(root.resolve() in real.parents and real.is_file(), path, "no regular file of the pool")
    return real


def load(root: Path, entry: Row, *, proven: bool = False) -> bytes:
    """Return a file's bytes. `proven`: also compare its SHA-256 with the manifest."""
    data = regular_file(root, entry["path"]).read_bytes()
    need(len(data) == entry["bytes"], entry["path"], "another size than in the manifest")
    need(not proven or hashlib.sha256(data).hexdigest() == entry["digest"], entry["path"], "another SHA-256")
    return data


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
    need(len(data) <= _MAX_BYTES, NAME, "too large")
    try:
        document = json.loads(data.decode(), object_pairs_hook=_object, parse_int=_whole)
        # Refuses NaN, 1e999 and lone surrogates.
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
        need(_depth(document) <= 32, NAME, "nested too deeply")
    except (ValueError, OverflowError, RecursionError) as error:
        raise Refused(f"{NAME}: {error}") from error
    return document


def check(value: Any, kind: Any, where: str, *, ignorable: bool = True) -> None:
    """Refuse a JSON value that is not of its kind, and drop fields that need not be understood.

    A kind is a range of integers, a regular expression for strings, `float`, `dict`, a dict with the kind of
    each field, a list with the kind of all items, or (None, kind) for what may be null.
    """
    if isinstance(kind, tuple):
        if value is not None:
            check(value, kind[1], where)
    elif isinstance(kind, dict):
        _check_fields(value, kind, where, ignorable)
    elif isinstance(kind, list):
        need(isinstance(value, list) and len(value) <= 10**6, where, "not a list")
        need(len(kind) in (1, len(value)), where, f"not {len(kind)} items")
        for number, item in enumerate(value):
            check(item, kind[0], f"{where}[{number}]")
    elif isinstance(kind, range):
        need(type(value) is int and value in kind, where, f"not an integer from {kind[0]} to {kind[-1]}")
    elif isinstance(kind, str):
        need(isinstance(value, str) and re.fullmatch(kind, value, re.DOTALL), where, f"not {kind}")
    else:
        need(type(value) in ((int, float) if kind is float else (kind,)), where, f"not {kind.__name__}")


def _check_fields(value: Any, kinds: dict[str, Any], where: str, ignorable: bool) -> None:
    need(isinstance(value, dict), where, "not an object")
    for name in list(value.keys() - kinds.keys()):
        extra = value.pop(name)
        optional = isinstance(extra, dict) and extra.get("must_understand") is False
        need(ignorable and optional, f"{where} {name!a}", "unknown field")
    for name, kind in kinds.items():
        need(name in value, f"{where} {name}", "missing field")
        check(value[name], kind, f"{where} {name}")


_TEXT, _DIGEST, _SIDE, _NATURAL = ".*", "[0-9a-f]{64}", range(1, 2**16), range(2**63)
_PAIR, _RGB = (None, [float] * 2), (None, [float] * 3)
_TEACHER = {"name": _TEXT, "weights_digest": (None, _DIGEST), "mean": _RGB, "std": _RGB}
_AUGMENTATION: Row = {
    "output_height": _SIDE,
    "output_width": _SIDE,
    "resize": _TEXT,
    "mix": "none|cutmix|mixup",
}
_AUGMENTATION |= {"crop_scale": _PAIR, "crop_ratio": _PAIR, "patch_grid": (None, range(1, 16))}
_AUGMENTATION |= dict.fromkeys(("flip_probability", "mix_alpha", "cutout_fraction"), (None, float))
_FILE: Row = {"path": _TEXT, "role": "|".join(_PATHS), "bytes": _NATURAL, "rows": range(2**40 + 1)}
_FILE |= {"footer_bytes": (None, range(12, 2**24 + 1)), "footer_digest": (None, _DIGEST), "digest": _DIGEST}
_STEP = {"operation": _TEXT, "parent_digest": (None, _DIGEST), "parameters": dict}
_SIZES = dict.fromkeys(("crop", "flip", "mix_index", "mix_strength", "mix_box"), _NATURAL)
_SIZES |= dict.fromkeys(("labels", "codec", "packed", "keys", "container"), _NATURAL)
_MANIFEST: Row = {
    "format": "lpld-label-pool",
    "format_version": range(1, 2),
    "classes": range(2, 2**24 + 1),
    "batch_size": range(1, 2**16 + 1),
    "label_kind": "logits|probabilities",
    "seed": (None, range(2**64)),
    "teachers": [_TEACHER],
    "ensemble": (None, _TEXT),
    "augmentation": _AUGMENTATION,
    "views": "stored|drawn",
    "lineage": [_STEP],
    "codec": {"name": _TEXT, "parameters": dict},
    "counts": {"images": range(2**31)}
    | dict.fromkeys(("epochs", "batches", "incomplete_batches", "rows"), _NATURAL),
    "coverage": {"median": float} | dict.fromkeys(("minimum", "maximum", "images", "classes"), _NATURAL),
    "components": _SIZES,
    "content_digest": _DIGEST,
    "files": [_FILE],
    "created_by": _TEXT,
}


class Manifest:
    """A manifest that is consistent in itself. `fields`: its JSON, without what a reader may ignore."""

    def __init__(self, root: Path) -> None:
        with regular_file(root, NAME).open("rb") as file:
            document = _parse(file.read(_MAX_BYTES + 1))
        need(isinstance(document, dict) and document.get("format_version") == 1, NAME, "not of version 1")
        check(document, _MANIFEST, NAME)
        self.fields: dict[str, Any] = document
        self.classes: int = self.fields["classes"]
        self.batch_size: int = self.fields["batch_size"]
        self.label_kind: str = self.fields["label_kind"]
        self.drawn: bool = self.fields["views"] == "drawn"
        self.how: dict[str, Any] = self.fields["augmentation"]
        self.counts: dict[str, int] = self.fields["counts"]
        self.files: list[Row] = self.fields["files"]
        need(self.classes * self.batch_size <= 2**25, f"{NAME} batch_size", "batches are too large")
        for teacher in self.fields["teachers"]:
            mean, std = teacher["mean"], teacher["std"]
            need((mean is None) == (std is None), f"{NAME} mean, std", "only one is null")
            need(std is None or min(std) > 0, f"{NAME} std", "not above 0")
        if self.drawn:
            self._check_drawable()
        self._check_files()
        self._check_sums()

    def of_role(self, role: str) -> list[Row]:
        return [entry for entry in self.files if entry["role"] == role]

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
            path, role, footer = entry["path"], entry["role"], (entry["footer_bytes"], entry["footer_digest"])
            need(re.fullmatch(_PATHS[role], path), where, f"{path[:200]!a} is not a path of role {role}")
            if role == "codec":
                need(footer == (None, None) and entry["rows"] == 0, path, "a codec table with footer or rows")
            else:
                need(None not in footer and footer[0] <= entry["bytes"] - 4, path, "has no footer")
            named = role != "batches" or path == f"batches-{entry['digest'][:8]}.parquet"
            need(named, path, "is not named after its digest")
        paths = {entry["path"].encode().lower() for entry in self.files}  # folds ASCII capitals
        need(len(paths) == len(self.files), where, "a path occurs twice")
        for role in ("batches", "images"):
            need(len(self.of_role(role)) == 1, where, f"not one file of role {role}")
        labels = [entry["path"].removeprefix("labels/") for entry in self.of_role("labels")]
        views = [entry["path"].removeprefix("views/") for entry in self.of_role("views")]
        need(views == ([] if self.drawn else labels), where, "views files are not those of the shards")

    def _check_sums(self) -> None:
        """Refuse what cannot be. The batch index proves the counts of batches and rows."""
        counts, coverage, components = self.counts, self.fields["coverage"], self.fields["components"]
        sizes = {role: sum(entry["bytes"] for entry in self.of_role(role)) for role in _PATHS}
        need(counts["batches"] <= sizes["labels"], f"{NAME} counts", "more batches than bytes of labels")
        rows = self.of_role("images")[0]["rows"]
        need(counts["images"] == rows <= 4 * sizes["images"], f"{NAME} counts", "images")
        packed = self.of_role("packed")
        need(not packed or counts["images"] == sum(entry["rows"] for entry in packed), NAME, "packed images")
        low, high, images = coverage["minimum"], coverage["maximum"], counts["images"]
        need(low <= coverage["median"] <= high, f"{NAME} coverage", "median is not from minimum to maximum")
        need(low * images <= counts["rows"] <= high * images, f"{NAME} coverage", "does not fit the rows")
        few = coverage["images"] <= images and coverage["classes"] <= self.classes
        need(few, f"{NAME} coverage", "more images or classes than there are")
        need(sum(components.values()) == sum(sizes.values()), f"{NAME} components", "not the files' bytes")
        for role in ("codec", "packed"):
            need(components[role] == sizes[role], f"{NAME} components", f"not the bytes of {role} files")
