"""Our directory of a zip against the standard library's."""

from __future__ import annotations

import io
import struct
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lpld_labels.interop.importers.zip_directory import member_bytes, read_directory


def stored(members: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return sink.getvalue()


PLAIN = stored({"x/data.pkl": b"N.", "x/data/0": bytes(range(200)), "x/größe": b""})


@settings(deadline=None)
@given(st.dictionaries(st.text("abc/é", min_size=1), st.binary(max_size=50), max_size=6))
def test_says_what_zipfile_says(members: dict[str, bytes]) -> None:
    data = stored(members)
    directory = read_directory(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        theirs = {
            info.filename: (info.header_offset, info.file_size, info.CRC) for info in archive.infolist()
        }
    assert directory == theirs
    assert {name: bytes(member_bytes(data, member)) for name, member in directory.items()} == members


@pytest.mark.parametrize("length", range(0, len(PLAIN), 7))
def test_no_beginning_of_a_zip_is_a_zip(length: int) -> None:
    with pytest.raises(ValueError, match="zip"):
        read_directory(PLAIN[:length])


def end_record(**changes: int) -> bytes:
    """Return the zip with other claims at its end."""
    fields = dict(
        zip(
            ("count", "length", "place", "comment"),
            struct.unpack_from("<HLLH", PLAIN, len(PLAIN) - 12),
            strict=True,
        )
    )
    fields |= changes
    return PLAIN[:-12] + struct.pack("<HLLH", *fields.values())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"count": 4}, "damaged|early"),
        ({"count": 65535}, "damaged|early"),
        ({"place": 7}, "damaged"),
        ({"place": 1 << 31}, "outside"),
        ({"length": 1 << 31}, "outside"),
        ({"comment": 5}, "outside"),
    ],
)
def test_claims_of_the_last_record(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_directory(end_record(**changes))


def test_a_member_that_is_not_there() -> None:
    directory = read_directory(PLAIN)
    member = directory["x/data/0"]
    for wrong in (
        member._replace(header=member.header + 1),
        member._replace(header=len(PLAIN) - 3),
        member._replace(header=1 << 40),
        member._replace(size=len(PLAIN)),
    ):
        with pytest.raises(ValueError, match="outside"):
            member_bytes(PLAIN, wrong)


def test_members_that_share_bytes() -> None:
    data = bytearray(PLAIN)
    place = struct.unpack_from("<L", PLAIN, len(PLAIN) - 6)[0]
    for _ in range(3):
        # Both sizes of every member, so that each claims the whole file.
        struct.pack_into("<LL", data, place + 20, len(PLAIN), len(PLAIN))
        place += 46 + sum(struct.unpack_from("<HHH", data, place + 28))
    with pytest.raises(ValueError, match="overlap"):
        read_directory(bytes(data))


@pytest.mark.parametrize(
    ("place", "form", "value"), [(8, "<H", 1), (10, "<H", zipfile.ZIP_DEFLATED), (20, "<L", 1)]
)
def test_members_that_are_not_stored_as_they_are(place: int, form: str, value: int) -> None:
    """The encryption flag, the method, and a length in the file that differs from the member's."""
    data = bytearray(PLAIN)
    first = struct.unpack_from("<L", PLAIN, len(PLAIN) - 6)[0]
    struct.pack_into(form, data, first + place, value)
    with pytest.raises(ValueError, match="compressed or encrypted"):
        read_directory(bytes(data))
