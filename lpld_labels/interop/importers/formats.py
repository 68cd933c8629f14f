"""All known formats. To add one: write its file, list it here."""

from __future__ import annotations

from collections.abc import Mapping

from lpld_labels.errors import InvalidArgumentError, LabelSourceError
from lpld_labels.interop.importers.base import LabelFormat
from lpld_labels.interop.importers.fkd import Fkd
from lpld_labels.interop.importers.gvbsm import Gvbsm
from lpld_labels.interop.importers.lpld import Lpld
from lpld_labels.interop.importers.lpld21k import Lpld21k
from lpld_labels.interop.importers.lpqld import Lpqld
from lpld_labels.interop.importers.sre2l import Sre2l
from lpld_labels.interop.label_folder import LabelFolder

FORMATS: Mapping[str, LabelFormat] = {
    kind.name: kind for kind in (Sre2l(), Lpld(), Lpld21k(), Lpqld(), Gvbsm(), Fkd())
}
AUTO = "auto"


def format_named(name: str, folder: LabelFolder) -> LabelFormat:
    """Return a format by name; ``auto`` finds the one that recognises the folder."""
    if name != AUTO:
        if name not in FORMATS:
            raise InvalidArgumentError("unknown label format", expected=", ".join(FORMATS), got=name)
        return FORMATS[name]
    if not (folder.by_epoch or folder.numbered or folder.by_image):
        seen = ", ".join(folder.strangers[:3]) or "nothing"
        raise LabelSourceError(
            "no label files of a known layout",
            where=folder.root,
            expected="epoch_E/batch_B.tar, batch_N.tar or CLASS/IMAGE.tar",
            got=seen,
        )
    for kind in FORMATS.values():
        if kind.recognises(folder):
            return kind
    raise LabelSourceError(
        "cannot tell the format of this folder", where=folder.root, hint="name it with --format"
    )
