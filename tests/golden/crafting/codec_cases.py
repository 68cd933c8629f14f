"""Pools whose codec has parameters or tables that are wrong."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.golden.crafting.cases import Change, case, entry, field, register
from tests.golden.crafting.crafted import Crafted


def _parameters(base: str, *rows: tuple[str, str, str, object]) -> None:
    """Register a case for each (name, reason, parameter, value)."""
    for name, reason, parameter, value in rows:
        register((f"{base}-{name}", reason, field(f"codec parameters {parameter}", value)), base=base)


_parameters(
    "topk-3",
    ("k-0", "k is 0", "k", 0),
    ("k-too-large", "k is above the number of classes", "k", 10**6),
    ("bits", "values of 12 bits", "value_bits", 12),
    ("label-kind", "label_kind is not the manifest's", "label_kind", "probabilities"),
)
_parameters(
    "klt",
    ("step-0", "a step of 0", "step", 0),
    ("step-negative", "a step below 0", "step", -1.0),
    ("step-too-large", "a step that float32 cannot hold", "step", 1e39),
    ("step-too-small", "a step that is 0 in float32", "step", 1e-60),
    ("edges-one", "a single edge", "edges", [0]),
    ("edges-twice", "an edge twice", "edges", [0, 2, 2, 4]),
    ("target", "parameter 'target' is no object", "target", 3),
    ("edges-start", "edges do not begin at 0", "edges", [1, 2]),
    ("edges-float", "an edge that is no integer", "edges", [0, 1.5]),
    ("edges-end", "edges end beyond the basis", "edges", [0, 60000]),
    ("peaks", "more peaks than classes", "peaks", 10**6),
    ("label-kind", "label_kind is not the manifest's", "label_kind", "probabilities"),
)
_parameters("f16", ("layout", "an unknown layout", "layout", "round"))


def _table(name: str, change: Callable[[bytes], bytes]) -> Change:
    def edit(pool: Crafted) -> None:
        pool.files[f"codec/{name}"] = change(pool.files[f"codec/{name}"])
        pool.sign()

    return edit


def _npy(name: str, array: np.ndarray[Any, np.dtype[Any]]) -> Change:
    sink = io.BytesIO()
    np.save(sink, array)
    return _table(name, lambda _: sink.getvalue())


register(
    ("mean-float64", "a mean of another type", _npy("mean.npy", np.zeros(5, "<f8"))),
    ("mean-nan", "a mean that is NaN", _npy("mean.npy", np.full(5, np.nan, "<f2"))),
    ("mean-two-dimensions", "a mean of two dimensions", _npy("mean.npy", np.zeros((1, 5), "<f2"))),
    ("mean-long", "a mean of another number of classes", _npy("mean.npy", np.zeros(50, "<f2"))),
    ("scale-inf", "a scale that is infinite", _npy("scale.npy", np.full(3, np.inf, "<f4"))),
    ("mean-cut-off", "a mean that ends early", _table("mean.npy", lambda b: b[:-1])),
    ("mean-trailing", "bytes after the mean", _table("mean.npy", lambda b: b + b"\0")),
    ("basis-noise", "a basis that is no pcodec file", _table("basis.pco", lambda b: b[::-1])),
    ("table-other-bytes", "a codec table has another SHA-256", entry("codec", "digest", "0" * 64)),
    base="klt",
    prefix="klt-",
)


@case("klt-table-missing", "a codec table is missing", base="klt")
def _(pool: Crafted) -> None:
    pool.manifest["files"] = [e for e in pool.manifest["files"] if not e["path"].endswith("mean.npy")]
    pool.sign()
