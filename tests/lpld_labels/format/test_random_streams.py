"""One list of what generators are for; its numbers decide images and orders, so they never change."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lpld_labels.format.random_streams import Stream, keyed_generator

PROJECT = Path(__file__).resolve().parents[3]
VALUES = {
    Stream.RECOVERY_VIEWS: 1,
    Stream.RECOVERY_NOISE: 2,
    Stream.STITCHED_CHOICE: 3,
    Stream.STITCHED_CROPS: 4,
    Stream.ANALYSIS_SAMPLE: 5,
    Stream.SQUEEZE_ORDER: 6,
    Stream.SQUEEZE_VIEWS: 7,
    Stream.LOADER_ORDER: 0x5A4D504C,
    Stream.CROPS_OF_IMAGES: 0x464B4443,
    Stream.TRAINING: 0x54524149,
}


def test_streams_keep_their_values_and_no_two_share_one() -> None:
    # An IntEnum takes a repeated value for another name of the first: members would be fewer than names.
    assert len(Stream.__members__) == len(list(Stream))
    assert {stream: int(stream) for stream in Stream} == VALUES


@pytest.mark.parametrize("stream", list(Stream))
def test_a_stream_draws_as_its_plain_number_does(stream: Stream) -> None:
    plain = keyed_generator(3, int(stream), 1, 2, 0).random(4)
    assert (keyed_generator(3, stream, 1, 2, 0).random(4) == plain).all()
    others = [keyed_generator(3, other, 1, 2, 0).random(4) for other in Stream if other is not stream]
    assert all((plain != draws).all() for draws in others)


def test_stream_numbers_are_written_nowhere_else() -> None:
    """A generator's place begins with a member of `Stream` or with a variable, never with a number."""
    for package in ("lpld_labels", "lpld_core", "cli"):
        for path in (PROJECT / package).rglob("*.py"):
            tree = ast.parse(path.read_text())
            constants = {
                name.id
                for node in tree.body
                if isinstance(node, ast.Assign) and _is_number(node.value)
                for target in node.targets
                for name in ast.walk(target)
                if isinstance(name, ast.Name)
            }
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                if not (isinstance(call.func, ast.Name) and call.func.id == "keyed_generator"):
                    continue
                for first in call.args[1:2]:
                    assert not _is_number(first), f"{path}:{call.lineno}"
                    assert not isinstance(first, ast.Name) or first.id not in constants, (
                        f"{path}:{call.lineno}"
                    )


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return all(_is_number(part) for part in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, int)
