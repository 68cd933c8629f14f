"""The numbers of the streams decide images and orders, so they never change."""

import re
from pathlib import Path

from lpld_labels.format.random_streams import Stream, keyed_generator

VALUES = {
    Stream.RECOVERY_VIEWS: 1,
    Stream.RECOVERY_NOISE: 2,
    Stream.STITCHED_CHOICE: 3,
    Stream.STITCHED_CROPS: 4,
    Stream.ANALYSIS_SAMPLE: 5,
    Stream.SQUEEZE_ORDER: 6,
    Stream.SQUEEZE_VIEWS: 7,
    Stream.PROBE: 8,
    Stream.LOADER_ORDER: 0x5A4D504C,
    Stream.CROPS_OF_IMAGES: 0x464B4443,
    Stream.FRESH_VIEWS: 0x46524553,
    Stream.TRAINING: 0x54524149,
}


def test_streams_keep_their_values_and_no_two_share_one() -> None:
    # An IntEnum takes a repeated value for another name of the first: members would be fewer than names.
    assert len(Stream.__members__) == len(list(Stream))
    assert {stream: int(stream) for stream in Stream} == VALUES
    for stream in Stream:
        assert keyed_generator(3, stream, 1).random() == keyed_generator(3, int(stream), 1).random()


def test_streams_do_not_run_together() -> None:
    places = [(), (0,), (0, 0), (0, 0, 0), (1,), (0, 1), (1, 0), *((stream, 1) for stream in Stream)]
    seeds = (0, 1, 2**32, 2**33)
    firsts = {float(keyed_generator(seed, *place).random()) for seed in seeds for place in places}
    assert len(firsts) == len(seeds) * len(places)


def test_stream_numbers_are_written_nowhere_else(project: Path) -> None:
    """A generator's place begins with a member of `Stream` or with a variable."""
    number = re.compile(r"keyed_generator\((?:[^(),]|\([^()]*\))+,\s*(?:\d|[A-Z_]+\b(?!\.))")
    for package in ("lpld_labels", "lpld_core", "cli"):
        for path in (project / package).rglob("*.py"):
            assert not number.search(path.read_text()), path
