"""Choosing the codec of a pool, with its tables proven."""

from __future__ import annotations

from pathlib import Path

from .codec_base import Codec
from .codec_float import FloatCodec
from .codec_int import IntCodec
from .codec_klt import TABLES, KltCodec
from .codec_topk import TopkCodec
from .errors import Refused, need
from .fields import Fields
from .files import PoolFile
from .manifest import NAME, Manifest


def choose_codec(root: Path, manifest: Manifest) -> Codec:
    """Make the pool's codec; refuse unknown names and parameters, and tables it does not need."""
    name = manifest.codec_name
    parameters = Fields(manifest.codec_parameters, NAME, "codec.parameters")
    tables = {entry.name: entry for entry in manifest.of_role("codec")}
    wanted = set(TABLES) if name == "klt" else set()
    need(set(tables) == wanted, NAME, "files", f"codec tables are not {sorted(wanted)}")

    def load(table: str, most: int) -> bytes:
        """Prove a codec table of at most so many bytes and read it."""
        entry = tables[table]
        need(entry.bytes <= most, entry.path, "bytes", f"more than {most}")
        return PoolFile(root, entry).proven()

    if name in ("f16", "f32"):
        return FloatCodec(name, parameters, manifest.classes)
    if name in ("int8", "int6", "int4"):
        return IntCodec(int(name[3:]), parameters, manifest.classes)
    if name == "topk":
        return TopkCodec(parameters, manifest.classes, manifest.label_kind)
    if name == "klt":
        return KltCodec(parameters, manifest.classes, manifest.label_kind, load)
    raise Refused(NAME, "codec.name", f"{name[:100]!r} is not known")
