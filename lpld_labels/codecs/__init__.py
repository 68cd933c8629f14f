"""Label codecs by name. To add one: implement `Codec` in its own file and list it here."""

from __future__ import annotations

from collections.abc import Mapping

from lpld_labels.codecs.affine import Int4Codec, Int6Codec, Int8Codec
from lpld_labels.codecs.base import Codec, EncodedLabels, Payload
from lpld_labels.codecs.floats import Float16Codec, Float32Codec
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import InvalidArgumentError, PoolFormatError
from lpld_labels.format.manifest import CodecEntry

CODECS: Mapping[str, type[Codec]] = {
    kind.name: kind
    for kind in (Float16Codec, Float32Codec, Int8Codec, Int6Codec, Int4Codec, TopKCodec, KltCodec)
}

SPELLINGS: Mapping[str, Codec] = {
    "f16": Float16Codec(),
    "f16:plain": Float16Codec(layout="plain"),
    "f32": Float32Codec(),
    "f32:plain": Float32Codec(layout="plain"),
    "int8": Int8Codec(),
    "int6": Int6Codec(),
    "int4": Int4Codec(),
}
"""How a codec that needs no fitting is named on a command line."""

TOPK_SPELLING = "topk:K[:BITS]"

__all__ = ["CODECS", "SPELLINGS", "Codec", "EncodedLabels", "Payload", "codec_named", "restore_codec"]


def codec_named(spelling: str, *, label_kind: str = "logits") -> Codec:
    """Return the codec a person asked for, e.g. ``f16``, ``f16:plain``, ``topk:50`` or ``topk:50:8``."""
    if spelling in SPELLINGS:
        return SPELLINGS[spelling]
    name, *numbers = spelling.split(":")
    if name == "topk" and 1 <= len(numbers) <= 2 and all(number.isdecimal() for number in numbers):
        k, bits = [*map(int, numbers), 16][:2]
        return TopKCodec(k=k, value_bits=bits, label_kind=label_kind)
    raise InvalidArgumentError(
        "unknown codec",
        expected=f"one of {', '.join([*sorted(SPELLINGS), TOPK_SPELLING])}",
        got=spelling,
    )


def restore_codec(entry: CodecEntry, tables: Mapping[str, bytes], *, where: str) -> Codec:
    """Rebuild the codec a manifest names."""
    kind = CODECS.get(entry.name)
    if kind is None:
        raise PoolFormatError(
            "unknown codec",
            where=where,
            expected=f"one of {', '.join(sorted(CODECS))}",
            got=entry.name,
            hint="upgrade lpld-labels if a newer version wrote this pool",
        )
    return kind.restore(entry.parameters, tables)
