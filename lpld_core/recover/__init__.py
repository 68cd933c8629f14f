"""Recovery: making a few images per class out of what a teacher remembers of its training data."""

from lpld_core.recover.folder import CONTACT_SHEET_FILE, RECORD_FILE, ImageFiles
from lpld_core.recover.plan import Part
from lpld_core.recover.run import RunSummary, recover_images, stitch_images
from lpld_core.recover.settings import METHODS, PRESETS, Preset, RdedSettings, RecoverSettings

__all__ = [
    "CONTACT_SHEET_FILE",
    "METHODS",
    "PRESETS",
    "RECORD_FILE",
    "ImageFiles",
    "Part",
    "Preset",
    "RdedSettings",
    "RecoverSettings",
    "RunSummary",
    "recover_images",
    "stitch_images",
]
