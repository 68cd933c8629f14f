"""How much of the parsers a target's inputs reach: lines of the functions that any of them enters."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import lpld_labels
from tests.trust.fuzz.targets import Target, tried

PACKAGE = Path(lpld_labels.__file__).parent


def reached(target: Target, inputs: Iterable[bytes]) -> tuple[int, int]:
    """Return the lines that inputs reach, and those there are, in functions of the target's parsers."""
    files = {str(PACKAGE / name) for name in target.parsers}
    hit: dict[CodeType, set[int]] = {}

    def tracer(frame: FrameType, event: str, argument: Any) -> Any:
        del event, argument
        if frame.f_code.co_filename not in files:
            return None
        hit.setdefault(frame.f_code, set()).add(frame.f_lineno)
        return tracer

    before = sys.gettrace()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for data in inputs:
            sys.settrace(tracer)
            try:
                tried(target, data)
            finally:
                sys.settrace(before)
    found = total = 0
    for code, lines in hit.items():
        # The line of `def` itself is no line of the function.
        there = {line for _, _, line in code.co_lines() if line} - {code.co_firstlineno}
        total += len(there)
        found += len(there & lines)
    return found, total
