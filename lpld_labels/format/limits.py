"""Limits (SPEC.md) that readers check before spending memory or time. Raising one needs a new version."""

from __future__ import annotations

# pool.json
MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_JSON_DEPTH = 32
MAX_INTEGER = 2**63 - 1
MAX_SEED = 2**64 - 1
MAX_FILES = 1_000_000
MAX_ROWS = 2**40  # Of a file, and of a pool.

# Labels
MAX_CLASSES = 1 << 24
MAX_BATCH_SIZE = 1 << 16
MAX_INDEX = 2**31 - 1  # Of epochs, batches and rows of a batch: 32-bit integers.
MAX_BATCH_VALUES = 1 << 25  # Classes times batch size: a batch decodes to at most 128 MiB of float32.
MAX_BASIS_VALUES = 1 << 26  # Vectors times classes of a `klt` basis.

# Images and views
MAX_SIDE = (1 << 16) - 1  # Pixels on a side of an image or a view.
MAX_IMAGES = (1 << 31) - 1
MAX_IMAGES_PER_BYTE = 4  # Of the image table's file: paths differ, so each takes some bytes.
MAX_PATH_BYTES = 4096
MAX_IMAGE_FILE_BYTES = 1 << 28  # Of a packed image.
MAX_PATCH_GRID = 15

# Parquet
MAX_FOOTER_BYTES = 1 << 24
MIN_FOOTER_BYTES = 12  # An empty footer: one byte of metadata at least, its length and the magic number.
MAX_GROUP_ROWS = 1 << 20
MAX_VIEW_VALUES = 1 << 24  # Of a list column in a row group of views: the patch orders of its rows.
MAX_PAGE_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 16  # Of a page.
PAGE_SPARE_PER_VALUE, PAGE_SPARE_BYTES = 16, 1024  # Levels and encoding headers on top of a page's values.
# A batch index or image table decompresses to at most GROWTH times its bytes, and SPARE more.
TABLE_GROWTH, TABLE_SPARE_BYTES = 64, 1 << 27
