"""Pools whose manifest is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.golden.crafting.cases import CASES, Case, Stage, case
from tests.golden.crafting.crafted import Crafted


def _text(pool: Crafted) -> str:
    return json.dumps(pool.manifest, indent=1, sort_keys=True) + "\n"


@case("manifest-missing", "there is no pool.json")
def _(pool: Crafted) -> None:
    pool.text = b""


@case("manifest-cut-off", "pool.json ends in the middle")
def _(pool: Crafted) -> None:
    pool.text = _text(pool)[:-200].encode()


@case("manifest-not-utf8", "pool.json is not UTF-8")
def _(pool: Crafted) -> None:
    pool.text = _text(pool).replace("lpld-labels", "lpld\xe9labels").encode("latin-1")


@case("manifest-field-twice", "field 'classes' occurs twice")
def _(pool: Crafted) -> None:
    pool.text = _text(pool).replace('"classes":', '"classes": 7,\n "classes":', 1).encode()


@case("manifest-number-too-large", "1e999 is no float64")
def _(pool: Crafted) -> None:
    pool.manifest["coverage"]["median"] = 12345.5
    pool.text = _text(pool).replace("12345.5", "1e999").encode()


@case("manifest-too-deep", "lists are nested 40 deep")
def _(pool: Crafted) -> None:
    nested: list[Any] = []
    for _ in range(40):
        nested = [nested]
    pool.manifest["lineage"] = [{"operation": "x", "parent_digest": None, "parameters": {"x": nested}}]


@case("manifest-link", "a views file is a symbolic link out of the pool")
def _(pool: Crafted) -> None:
    pool.links[pool.path("views")] = "../../../v1/f16-plain/" + pool.path("views")


def _fields(
    *edits: tuple[str, str, tuple[str | int, ...], object], base: str = "f16-plain", stage: Stage = "open"
) -> None:
    """Register a case for each (name, reason, place in the manifest, value); MISSING removes the field."""
    for name, reason, place, value in edits:
        CASES.append(Case(name=name, base=base, stage=stage, reason=reason, change=_setter(place, value)))


MISSING = object()


def _setter(place: tuple[str | int, ...], value: object) -> Callable[[Crafted], None]:
    def change(pool: Crafted) -> None:
        target: Any = pool.manifest
        for step in place[:-1]:
            target = target[step]
        if value is MISSING:
            del target[place[-1]]
        else:
            target[place[-1]] = value

    return change


_fields(
    ("format-other", "another format", ("format",), "something-else"),
    ("version-0", "format_version below 1", ("format_version",), 0),
    ("version-2", "format_version above 1", ("format_version",), 2),
    ("version-true", "a boolean for an integer", ("format_version",), True),
    ("field-unknown", "an unknown field", ("surprise",), 1),
    ("field-unknown-inside", "an unknown field in augmentation", ("augmentation", "surprise"), {}),
    ("field-missing", "field 'created_by' is missing", ("created_by",), MISSING),
    ("classes-1", "fewer than 2 classes", ("classes",), 1),
    ("classes-too-many", "more than 2^24 classes", ("classes",), 2**24 + 1),
    ("classes-float", "4.0 is no integer", ("classes",), 4.5),
    ("batch-size-0", "an empty batch", ("batch_size",), 0),
    ("label-kind-unknown", "an unknown label_kind", ("label_kind",), "votes"),
    ("seed-negative", "a seed below 0", ("seed",), -1),
    ("seed-too-large", "a seed of more than 64 bits", ("seed",), 2**64),
    ("std-zero", "std 0 divides by zero", ("teachers", 0, "std"), [0.2, 0.0, 0.2]),
    ("mean-two-numbers", "mean has two numbers", ("teachers", 0, "mean"), [0.5, 0.5]),
    ("weights-digest-short", "a digest of 3 digits", ("teachers", 0, "weights_digest"), "abc"),
    ("output-0", "views of no height", ("augmentation", "output_height"), 0),
    ("output-too-large", "views of 65,536 rows", ("augmentation", "output_height"), 65536),
    ("mix-unknown", "an unknown mix", ("augmentation", "mix"), "blend"),
    ("patch-grid-16", "a patch grid above 15", ("augmentation", "patch_grid"), 16),
    ("views-unknown", "views are neither stored nor drawn", ("views",), "dreamt"),
    ("codec-unknown", "an unknown codec", ("codec", "name"), "mp3"),
    ("codec-parameter-unknown", "an unknown codec parameter", ("codec", "parameters", "speed"), 1),
    (
        "codec-parameter-ignorable",
        "nothing unknown is ignored in codec parameters",
        ("codec", "parameters", "speed"),
        {"must_understand": False},
    ),
    ("content-digest-upper", "a digest in capitals", ("content_digest",), "A" * 64),
    ("counts-batches", "counts.batches is not that of the index", ("counts", "batches"), 99),
    ("counts-rows", "counts.rows is not that of the index", ("counts", "rows"), 1),
    ("counts-images-too-many", "counts.images above 2^31 - 1", ("counts", "images"), 2**31),
    (
        "counts-incomplete",
        "counts.incomplete_batches is not that of the index",
        ("counts", "incomplete_batches"),
        9,
    ),
    ("coverage-turned", "minimum above maximum", ("coverage", "minimum"), 1000),
    ("coverage-classes", "more classes than there are", ("coverage", "classes"), 1000),
    ("components-missing", "a component is missing", ("components", "packed"), MISSING),
    ("components-negative", "a component below 0", ("components", "packed"), -1),
    ("mean-without-std", "mean without std", ("teachers", 0, "std"), None),
    ("files-rows", "files give another number of rows than the index", ("files", 0, "rows"), 1),
    ("files-label-rows", "files give the labels another number of rows", ("files", 1, "rows"), 1),
    ("footer-too-long", "a footer longer than its file", ("files", 0, "footer_bytes"), 10**6),
    (
        "index-name",
        "the index's name does not begin with its digest",
        ("files", 2, "path"),
        "batches-00000000.parquet",
    ),
    ("lineage-digest", "a parent's digest of 3 digits", ("lineage", 0, "parent_digest"), "abc"),
    ("counts-epochs", "counts.epochs is not that of the index", ("counts", "epochs"), 0),
    ("components-sum", "components do not sum to the files' bytes", ("components", "labels"), 1),
    ("components-unknown", "an unknown component", ("components", "dust"), 0),
    ("path-absolute", "a file's path is absolute", ("files", 0, "path"), "/etc/passwd"),
    ("path-climbs", "a file's path climbs out", ("files", 0, "path"), "../pool.json"),
    ("path-backslash", "a backslash in a path", ("files", 0, "path"), "views\\a.parquet"),
    ("path-nul", "NUL in a path", ("files", 0, "path"), "views/a\0.parquet"),
    ("path-manifest", "pool.json as a file of the pool", ("files", 0, "path"), "pool.json"),
    ("path-staging", "a file below staging/", ("files", 0, "path"), "staging/a.parquet"),
    ("path-hidden", "a name that begins with a dot", ("files", 0, "path"), "views/.a.parquet"),
    ("role-unknown", "an unknown role", ("files", 0, "role"), "notes"),
    ("bytes-negative", "a negative size", ("files", 0, "bytes"), -1),
    ("manifest-nan", "NaN is no JSON number", ("coverage", "median"), float("nan")),
    ("manifest-draft", "field 'views' is missing: a draft of version 1", ("views",), MISSING),
    ("manifest-surrogate", "half a character in a string", ("ensemble",), "\ud800"),
    ("drawn-with-views", "views are drawn, but there is a views file", ("views",), "drawn"),
)
_fields(
    ("drawn-without-seed", "views are drawn, but there is no seed", ("seed",), None),
    (
        "drawn-crop-range",
        "views are drawn from a range whose low is above its high",
        ("augmentation", "crop_scale"),
        [0.9, 0.1],
    ),
    (
        "drawn-flip-range",
        "views are drawn with a probability above 1",
        ("augmentation", "flip_probability"),
        1.5,
    ),
    ("drawn-mix-alpha", "mixed views are drawn without mix_alpha", ("augmentation", "mix_alpha"), None),
    base="f16-drawn",
)
_fields(
    ("content-digest-other", "the content digest is that of another pool", ("content_digest",), "0" * 64),
    stage="verify",
)


@case("role-other", "the image table is listed as codec table")
def _(pool: Crafted) -> None:
    pool.entry("images")["role"] = "codec"


@case("file-twice", "one path twice, in other capitals")
def _(pool: Crafted) -> None:
    for role in ("views", "labels"):
        entry = dict(pool.entry(role))
        folder, name = entry["path"].split("/")
        entry["path"] = f"{folder}/{name.upper().replace('.PARQUET', '.parquet')}"
        if entry["path"] == pool.path(role):
            entry["path"] = f"{folder}/X{name}"
        pool.manifest["files"].append(entry)
    names = [entry["path"] for entry in pool.manifest["files"]]
    assert len({name.casefold() for name in names}) < len(names)


@case("views-file-missing", "a labels file has no views file")
def _(pool: Crafted) -> None:
    pool.manifest["files"].remove(pool.entry("views"))
    pool.sign()


@case(
    "drawn-other-seed", "drawing gives other views than those of the digests", base="f16-drawn", stage="read"
)
def _(pool: Crafted) -> None:
    pool.manifest["seed"] += 1


@case("manifest-byte-order-mark", "pool.json begins with a byte order mark")
def _(pool: Crafted) -> None:
    pool.text = b"\xef\xbb\xbf" + _text(pool).encode()


@case("manifest-list", "pool.json is no object")
def _(pool: Crafted) -> None:
    pool.text = b"[]\n"


@case("two-image-tables", "two files of role images")
def _(pool: Crafted) -> None:
    pool.manifest["files"].append(dict(pool.entry("images")))


@case("file-gone", "a labels file is missing")
def _(pool: Crafted) -> None:
    del pool.files[pool.path("labels")]


@case("file-cut-off", "a labels file is shorter than the manifest says")
def _(pool: Crafted) -> None:
    pool.files[pool.path("labels")] = pool.files[pool.path("labels")][:-1]


@case("index-other-bytes", "the batch index has another SHA-256")
def _(pool: Crafted) -> None:
    pool.entry("batches")["digest"] = "0" * 64


@case("footer-null", "a Parquet file without footer_digest")
def _(pool: Crafted) -> None:
    pool.entry("views")["footer_digest"] = None


@case("footer-other", "a views file's footer has another SHA-256", stage="read")
def _(pool: Crafted) -> None:
    pool.entry("views")["footer_digest"] = "0" * 64


@case("images-other-bytes", "the image table has another SHA-256", stage="read")
def _(pool: Crafted) -> None:
    pool.entry("images")["digest"] = "0" * 64


@case("file-other-bytes", "a views file has another SHA-256, its footer the right one", stage="verify")
def _(pool: Crafted) -> None:
    pool.entry("views")["digest"] = "0" * 64


@case("coverage-other", "coverage is not that of the views", stage="verify")
def _(pool: Crafted) -> None:
    pool.manifest["coverage"]["maximum"] += 1


@case("components-other", "bytes of labels are counted as crops", stage="verify")
def _(pool: Crafted) -> None:
    pool.manifest["components"]["labels"] -= 1
    pool.manifest["components"]["crop"] += 1


def _batch_size(pool: Crafted, size: int) -> None:
    """Set the batch size; all batches are incomplete then."""
    pool.manifest["batch_size"] = size
    pool.manifest["counts"]["incomplete_batches"] = pool.manifest["counts"]["batches"]


@case("batch-size-too-large", "more than 2^16 rows in a batch")
def _(pool: Crafted) -> None:
    _batch_size(pool, 2**16 + 1)


@case("batch-too-large", "classes x batch_size above 2^25", base="wide")
def _(pool: Crafted) -> None:
    _batch_size(pool, 2**25 // pool.manifest["classes"] + 1)


@case("counts-rows-per-batch", "more rows than the batches can hold", base="f16-drawn")
def _(pool: Crafted) -> None:
    pool.manifest["counts"]["rows"] = pool.manifest["counts"]["batches"] * pool.manifest["batch_size"] + 1


@case("index-rows", "files give the batch index another number of rows than there are batches")
def _(pool: Crafted) -> None:
    pool.entry("batches")["rows"] += 1


for _folder in ("views", "labels", "codec", "packed"):

    def _leave(pool: Crafted, folder: str = _folder) -> None:
        pool.files[f"{folder}/left-over.parquet"] = b"of an interrupted commit"

    CASES.append(
        Case(
            name=f"left-over-in-{_folder}",
            base="f16-plain",
            stage="verify",
            reason=f"a file in {_folder}/ that the manifest does not name",
            change=_leave,
        )
    )
