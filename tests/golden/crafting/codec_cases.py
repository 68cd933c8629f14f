"""Pools whose codec has parameters or tables that are wrong."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.golden.crafting.cases import CASES, Case, case
from tests.golden.crafting.crafted import Crafted


def _parameters(base: str, *edits: tuple[str, str, str, object]) -> None:
    for name, reason, field, value in edits:
        CASES.append(
            Case(
                name=f"{base}-{name}", base=base, stage="open", reason=reason, change=_parameter(field, value)
            )
        )


def _parameter(field: str, value: object) -> Callable[[Crafted], None]:
    def change(pool: Crafted) -> None:
        pool.manifest["codec"]["parameters"][field] = value

    return change


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


def _table(name: str, change: Callable[[bytes], bytes]) -> Callable[[Crafted], None]:
    def edit(pool: Crafted) -> None:
        pool.files[f"codec/{name}"] = change(pool.files[f"codec/{name}"])
        pool.sign()

    return edit


def _npy(array: np.ndarray[Any, np.dtype[Any]]) -> Callable[[bytes], bytes]:
    sink = io.BytesIO()
    np.save(sink, array)
    return lambda _: sink.getvalue()


for _name, _reason, _file, _change in (
    ("mean-float64", "a mean of another type", "mean.npy", _npy(np.zeros(5, "<f8"))),
    ("mean-nan", "a mean that is NaN", "mean.npy", _npy(np.full(5, np.nan, "<f2"))),
    ("mean-two-dimensions", "a mean of two dimensions", "mean.npy", _npy(np.zeros((1, 5), "<f2"))),
    ("mean-long", "a mean of another number of classes", "mean.npy", _npy(np.zeros(50, "<f2"))),
    ("scale-inf", "a scale that is infinite", "scale.npy", _npy(np.full(3, np.inf, "<f4"))),
    ("mean-cut-off", "a mean that ends early", "mean.npy", lambda b: b[:-1]),
    ("mean-trailing", "bytes after the mean", "mean.npy", lambda b: b + b"\0"),
    ("basis-noise", "a basis that is no pcodec file", "basis.pco", lambda b: b[::-1]),
):
    CASES.append(
        Case(name=f"klt-{_name}", base="klt", stage="open", reason=_reason, change=_table(_file, _change))
    )


@case("klt-table-missing", "a codec table is missing", base="klt")
def _(pool: Crafted) -> None:
    pool.manifest["files"] = [e for e in pool.manifest["files"] if not e["path"].endswith("mean.npy")]
    pool.sign()


@case("klt-table-other-bytes", "a codec table has another SHA-256", base="klt")
def _(pool: Crafted) -> None:
    pool.entry("codec")["digest"] = "0" * 64
