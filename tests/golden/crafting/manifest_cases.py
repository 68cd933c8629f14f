"""Pools whose manifest is wrong."""

import json
from collections.abc import Callable
from typing import Any

from tests.golden.crafting.cases import MISSING, Change, Stage, case, entry, field, file, in_order, register
from tests.golden.crafting.crafted import Crafted


def _text(change: Callable[[str], str | bytes]) -> Change:
    """Change the text of pool.json."""

    def edit(pool: Crafted) -> None:
        text = change(json.dumps(pool.manifest, indent=1, sort_keys=True) + "\n")
        pool.text = text if isinstance(text, bytes) else text.encode()

    return edit


def _fields(*rows: tuple[str, str, str, object], base: str = "f16-plain", stage: Stage = "open") -> None:
    """Register a case for each (name, reason, place in the manifest, value)."""
    register(*((name, why, field(place, value)) for name, why, place, value in rows), base=base, stage=stage)


_fields(
    ("format-other", "another format", "format", "something-else"),
    ("version-0", "format_version below 1", "format_version", 0),
    ("version-2", "format_version above 1", "format_version", 2),
    ("version-true", "a boolean for an integer", "format_version", True),
    ("field-unknown", "an unknown field", "surprise", 1),
    ("field-unknown-inside", "an unknown field in augmentation", "augmentation surprise", {}),
    ("field-missing", "field 'created_by' is missing", "created_by", MISSING),
    ("classes-1", "fewer than 2 classes", "classes", 1),
    ("classes-too-many", "more than 2^24 classes", "classes", 2**24 + 1),
    ("classes-float", "4.0 is no integer", "classes", 4.5),
    ("batch-size-0", "an empty batch", "batch_size", 0),
    ("label-kind-unknown", "an unknown label_kind", "label_kind", "votes"),
    ("seed-negative", "a seed below 0", "seed", -1),
    ("seed-too-large", "a seed of more than 64 bits", "seed", 2**64),
    ("std-zero", "std 0 divides by zero", "teachers 0 std", [0.2, 0.0, 0.2]),
    ("mean-two-numbers", "mean has two numbers", "teachers 0 mean", [0.5, 0.5]),
    ("weights-digest-short", "a digest of 3 digits", "teachers 0 weights_digest", "abc"),
    ("output-0", "views of no height", "augmentation output_height", 0),
    ("output-too-large", "views of 65,536 rows", "augmentation output_height", 65536),
    ("mix-unknown", "an unknown mix", "augmentation mix", "blend"),
    ("patch-grid-16", "a patch grid above 15", "augmentation patch_grid", 16),
    ("views-unknown", "views are neither stored nor drawn", "views", "dreamt"),
    ("codec-unknown", "an unknown codec", "codec name", "mp3"),
    ("codec-parameter-unknown", "an unknown codec parameter", "codec parameters speed", 1),
    (
        "codec-parameter-ignorable",
        "nothing unknown is ignored in codec parameters",
        "codec parameters speed",
        {"must_understand": False},
    ),
    ("content-digest-upper", "a digest in capitals", "content_digest", "A" * 64),
    ("counts-batches", "counts.batches is not that of the index", "counts batches", 99),
    ("counts-rows", "counts.rows is not that of the index", "counts rows", 1),
    ("counts-images-too-many", "counts.images above 2^31 - 1", "counts images", 2**31),
    (
        "counts-incomplete",
        "counts.incomplete_batches is not that of the index",
        "counts incomplete_batches",
        9,
    ),
    ("coverage-turned", "minimum above maximum", "coverage minimum", 1000),
    ("coverage-classes", "more classes than there are", "coverage classes", 1000),
    ("components-missing", "a component is missing", "components packed", MISSING),
    ("components-negative", "a component below 0", "components packed", -1),
    ("mean-without-std", "mean without std", "teachers 0 std", None),
    ("files-rows", "files give another number of rows than the index", "files 0 rows", 1),
    ("files-label-rows", "files give the labels another number of rows", "files 1 rows", 1),
    ("footer-too-long", "a footer longer than its file", "files 0 footer_bytes", 10**6),
    (
        "index-name",
        "the index's name does not begin with its digest",
        "files 2 path",
        "batches-00000000.parquet",
    ),
    ("lineage-digest", "a parent's digest of 3 digits", "lineage 0 parent_digest", "abc"),
    ("counts-epochs", "counts.epochs is not that of the index", "counts epochs", 0),
    ("components-sum", "components do not sum to the files' bytes", "components labels", 1),
    ("components-unknown", "an unknown component", "components dust", 0),
    ("path-absolute", "a file's path is absolute", "files 0 path", "/etc/passwd"),
    ("path-climbs", "a file's path climbs out", "files 0 path", "../pool.json"),
    ("path-backslash", "a backslash in a path", "files 0 path", "views\\a.parquet"),
    ("path-nul", "NUL in a path", "files 0 path", "views/a\0.parquet"),
    ("path-manifest", "pool.json as a file of the pool", "files 0 path", "pool.json"),
    ("path-staging", "a file below staging/", "files 0 path", "staging/a.parquet"),
    ("path-hidden", "a name that begins with a dot", "files 0 path", "views/.a.parquet"),
    ("role-unknown", "an unknown role", "files 0 role", "notes"),
    ("bytes-negative", "a negative size", "files 0 bytes", -1),
    ("manifest-nan", "NaN is no JSON number", "coverage median", float("nan")),
    ("manifest-draft", "field 'views' is missing: a draft of version 1", "views", MISSING),
    ("manifest-surrogate", "half a character in a string", "ensemble", "\ud800"),
    ("drawn-with-views", "views are drawn, but there is a views file", "views", "drawn"),
)
_fields(
    ("drawn-without-seed", "views are drawn, but there is no seed", "seed", None),
    (
        "drawn-crop-range",
        "views are drawn from a range whose low is above its high",
        "augmentation crop_scale",
        [0.9, 0.1],
    ),
    ("drawn-flip-range", "views are drawn with a probability above 1", "augmentation flip_probability", 1.5),
    ("drawn-mix-alpha", "mixed views are drawn without mix_alpha", "augmentation mix_alpha", None),
    base="f16-drawn",
)
_fields(
    ("content-digest-other", "the content digest is that of another pool", "content_digest", "0" * 64),
    stage="verify",
)


def _nested(depth: int) -> Any:
    return [_nested(depth - 1)] if depth else []


def _batch_size(size: int) -> Change:
    """Set the batch size; all batches are incomplete then."""

    def change(pool: Crafted) -> None:
        pool.manifest["batch_size"] = size
        pool.manifest["counts"]["incomplete_batches"] = pool.manifest["counts"]["batches"]

    return change


def _added(name: str) -> Change:
    return lambda pool: pool.files.update({name: b"of an interrupted commit"})


register(
    ("manifest-missing", "there is no pool.json", _text(lambda text: "")),
    ("manifest-cut-off", "pool.json ends in the middle", _text(lambda text: text[:-200])),
    (
        "manifest-not-utf8",
        "pool.json is not UTF-8",
        _text(lambda text: text.replace("lpld-labels", "lpld\xe9labels").encode("latin-1")),
    ),
    (
        "manifest-field-twice",
        "field 'classes' occurs twice",
        _text(lambda text: text.replace('"classes":', '"classes": 7,\n "classes":', 1)),
    ),
    (
        "manifest-number-too-large",
        "1e999 is no float64",
        in_order(field("coverage median", 12345.5), _text(lambda text: text.replace("12345.5", "1e999"))),
    ),
    (
        "manifest-too-deep",
        "lists are nested 40 deep",
        field("lineage", [{"operation": "x", "parent_digest": None, "parameters": {"x": _nested(40)}}]),
    ),
    (
        "manifest-byte-order-mark",
        "pool.json begins with a byte order mark",
        _text(lambda text: f"\ufeff{text}"),
    ),
    ("manifest-list", "pool.json is no object", _text(lambda text: "[]\n")),
    ("role-other", "the image table is listed as codec table", entry("images", "role", "codec")),
    (
        "two-image-tables",
        "two files of role images",
        lambda pool: pool.manifest["files"].append(dict(pool.entry("images"))),
    ),
    ("file-gone", "a labels file is missing", lambda pool: pool.files.pop(pool.path("labels"))),
    (
        "file-cut-off",
        "a labels file is shorter than the manifest says",
        file("labels", lambda data: data[:-1], signed=False),
    ),
    ("index-other-bytes", "the batch index has another SHA-256", entry("batches", "digest", "0" * 64)),
    ("footer-null", "a Parquet file without footer_digest", entry("views", "footer_digest", None)),
    ("batch-size-too-large", "more than 2^16 rows in a batch", _batch_size(2**16 + 1)),
    (
        "index-rows",
        "files give the batch index another number of rows than there are batches",
        field("files 2 rows", lambda rows: rows + 1),
    ),
)
register(
    ("footer-other", "a views file's footer has another SHA-256", entry("views", "footer_digest", "0" * 64)),
    ("images-other-bytes", "the image table has another SHA-256", entry("images", "digest", "0" * 64)),
    stage="read",
)
register(
    (
        "file-other-bytes",
        "a views file has another SHA-256, its footer the right one",
        entry("views", "digest", "0" * 64),
    ),
    (
        "coverage-other",
        "coverage is not that of the views",
        field("coverage maximum", lambda count: count + 1),
    ),
    (
        "components-other",
        "bytes of labels are counted as crops",
        in_order(
            field("components labels", lambda size: size - 1), field("components crop", lambda size: size + 1)
        ),
    ),
    *(
        (
            f"left-over-in-{folder}",
            f"a file in {folder}/ that the manifest does not name",
            _added(f"{folder}/left-over.parquet"),
        )
        for folder in ("views", "labels", "codec", "packed")
    ),
    stage="verify",
)
_fields(
    (
        "drawn-other-seed",
        "drawing gives other views than those of the digests",
        "seed",
        lambda seed: seed + 1,
    ),
    base="f16-drawn",
    stage="read",
)


@case("manifest-link", "a views file is a symbolic link out of the pool")
def _(pool: Crafted) -> None:
    pool.links[pool.path("views")] = "../../../v1/f16-plain/" + pool.path("views")


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


@case("batch-too-large", "classes x batch_size above 2^25", base="wide")
def _(pool: Crafted) -> None:
    _batch_size(2**25 // pool.manifest["classes"] + 1)(pool)


@case("counts-rows-per-batch", "more rows than the batches can hold", base="f16-drawn")
def _(pool: Crafted) -> None:
    pool.manifest["counts"]["rows"] = pool.manifest["counts"]["batches"] * pool.manifest["batch_size"] + 1
