"""What is where in a zip whose members are stored as they are, which is the only kind torch.save writes.

`zipfile` knows every kind of zip, and takes longer over the ten members of a label batch than checking
all of its bytes. This reads the one kind, from memory, and refuses all others. Label files are
smaller than 2 GiB, so the 64-bit records that torch.save adds only repeat what the others say.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

_END = struct.Struct("<4s6xHLLH")
_MEMBER = struct.Struct("<4s4xHH4xLLLHHH8xL")
_LOCAL = struct.Struct("<4s22xHH")
_ENCRYPTED = 1
_STORED = 0


class Member(NamedTuple):
    """Where the header of a member is, and the length and CRC-32 of its bytes."""

    header: int
    size: int
    crc: int


def read_directory(data: bytes) -> dict[str, Member]:
    """Return the members of a zip by name. Raises ValueError for anything but a whole, plain zip."""
    end = len(data) - _END.size
    if end < 0 or data[end : end + 4] != b"PK\x05\x06":
        raise ValueError("it does not end as a zip does")
    _, count, length, place, comment = _END.unpack_from(data, end)
    if comment or place + length > end:
        raise ValueError("its directory lies outside the file")
    members: dict[str, Member] = {}
    total = 0
    for _ in range(count):
        if place + _MEMBER.size > end:
            raise ValueError("its directory ends too early")
        magic, flags, method, crc, packed, size, name_length, extra, remark, header = _MEMBER.unpack_from(
            data, place
        )
        if magic != b"PK\x01\x02":
            raise ValueError("its directory is damaged")
        if method != _STORED or flags & _ENCRYPTED or packed != size:
            raise ValueError("it is compressed or encrypted, which torch.save never does")
        start = place + _MEMBER.size
        name = data[start : start + name_length].decode()
        if name in members:
            raise ValueError(f"two members have the name {name!r}")
        members[name] = Member(header, size, crc)
        total += size
        place = start + name_length + extra + remark
    if total > len(data):
        raise ValueError("its members overlap")
    return members


def member_bytes(data: bytes, member: Member) -> memoryview:
    """Return the bytes of a member, not compared with its CRC-32 yet. Raises ValueError if there are none.

    The names in the directory and in the member's own header may differ; the directory counts.
    """
    if member.header + _LOCAL.size > len(data):
        raise ValueError("a member lies outside the file")
    magic, name_length, extra = _LOCAL.unpack_from(data, member.header)
    start = member.header + _LOCAL.size + name_length + extra
    if magic != b"PK\x03\x04" or start + member.size > len(data):
        raise ValueError("a member lies outside the file")
    return memoryview(data)[start : start + member.size]
