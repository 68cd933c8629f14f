"""Label codecs by name. To add one, implement `Codec` in its own file and register it here."""

from __future__ import annotations

from collections.abc import Mapping

from lpld_labels.codecs.affine import Int4Codec, Int6Codec, Int8Codec
from lpld_labels.codecs.base import Codec, EncodedLabels, Payload
from lpld_labels.codecs.floats import Float16Codec, Float32Codec
from lpld_labels.codecs.klt import KltCodec
from lpld_labels.codecs.topk import TopKCodec
from lpld_labels.errors import InvalidArgumentError, ManifestError, PoolCorruptError, PoolFormatError
from lpld_labels.format.manifest import CodecEntry

CODECS: dict[str, type[Codec]] = {
    kind.name: kind
    for kind in (Float16Codec, Float32Codec, Int8Codec, Int6Codec, Int4Codec, TopKCodec, KltCodec)
}
"""Codec classes by name. The codecs that `plan` tries are in order of decreasing fidelity."""

__all__ = [
    "CODECS",
    "Codec",
    "EncodedLabels",
    "Payload",
    "codec_kind",
    "codec_named",
    "planned_codecs",
    "restore_codec",
]


def codec_kind(spec: str) -> type[Codec]:
    """Return the class of a codec by its name or one of its specs."""
    kind = CODECS.get(spec.split(":", maxsplit=1)[0])
    if kind is None:
        raise _unknown(spec, fitted=True)
    return kind


def codec_named(spec: str, *, label_kind: str = "logits") -> Codec:
    """Return the codec for a spec such as ``f16``, ``f16:plain``, ``topk:50`` or ``topk:50:8``."""
    codec = codec_kind(spec).parse(spec.split(":")[1:], label_kind=label_kind)
    if codec is None:
        raise _unknown(spec, fitted=False)
    return codec


def planned_codecs(*, fitted: bool) -> tuple[str, ...]:
    """Return the names of the codecs that `plan` tries by default. fitted: whether they need fitting."""
    return tuple(name for name, kind in CODECS.items() if kind.planned and kind.fitted == fitted)


def _unknown(spec: str, *, fitted: bool) -> InvalidArgumentError:
    kinds = [kind for kind in CODECS.values() if fitted or not kind.fitted]
    known = {name for kind in kinds for name in kind.specs or (kind.name,)}
    near = [name for name in sorted(known) if name.lower() == spec.lower()]
    return InvalidArgumentError(
        "unknown codec",
        expected=f"one of {', '.join(sorted(known))}",
        got=spec,
        hint=f"did you mean {near[0]}?" if near else "",
    )


def restore_codec(
    entry: CodecEntry, tables: Mapping[str, bytes], *, classes: int, label_kind: str, where: str
) -> Codec:
    """Rebuild the codec from its manifest entry for a pool with `classes` classes and `label_kind` labels."""
    kind = CODECS.get(entry.name)
    if kind is None:
        raise PoolFormatError(
            "unknown codec",
            where=where,
            expected=f"one of {', '.join(sorted(CODECS))}",
            got=entry.name,
            hint="upgrade lpld-labels if a newer version wrote this pool",
        )
    try:
        codec = kind.restore(entry.parameters, tables)
        codec.require_fit(classes=classes)
    except (ManifestError, PoolCorruptError) as error:
        place = f"{where}, {error.where}" if error.where else where
        raise type(error)(**{**error.parts(), "where": place}) from None
    if set(tables) != set(codec.tables()):
        raise ManifestError(
            f"codec '{entry.name}' has the wrong tables",
            where=where,
            expected=sorted(codec.tables()),
            got=sorted(tables),
        )
    stated = codec.parameters().get("label_kind", label_kind)
    if stated != label_kind:
        raise ManifestError(
            "field 'codec.parameters.label_kind' differs from the pool's label_kind",
            where=where,
            expected=label_kind,
            got=stated,
        )
    codec.label_kind = label_kind
    return codec
