"""Limits that readers check before spending memory or time. Raising a limit requires a new format version."""

from __future__ import annotations

# pool.json
MAX_JSON_BYTES = 16 * 1024 * 1024
MAX_JSON_DEPTH = 32
MAX_INTEGER = 2**63 - 1
MAX_SEED = 2**64 - 1
MAX_FILES = 1_000_000
MAX_ROWS = 2**40  # Rows in a file or in a pool.

# Labels
MAX_CLASSES = 1 << 24
MAX_BATCH_SIZE = 1 << 16
MAX_INDEX = 2**31 - 1  # Epochs, batches and slots are 32-bit integers.
MAX_BATCH_VALUES = 1 << 25  # Classes times batch size. A batch decodes to at most 128 MiB of float32.
MAX_BASIS_VALUES = 1 << 26  # Number of vectors times number of classes in a basis of codec `klt`.

# Images and views
MAX_SIDE = (1 << 16) - 1  # Height or width of an image or a view in pixels.
MAX_IMAGES = (1 << 31) - 1
MAX_IMAGES_PER_BYTE = 4  # Images per byte of images.parquet. Real files have fewer, because paths differ.
MAX_PATH_BYTES = 4096
MAX_IMAGE_FILE_BYTES = 1 << 28  # Bytes of a packed image.
MAX_PATCH_GRID = 15

# Parquet
MAX_FOOTER_BYTES = 1 << 24
MIN_FOOTER_BYTES = 12  # The shortest footer: metadata, its length (4 bytes) and the magic number (4).
MAX_GROUP_ROWS = 1 << 20
MAX_VIEW_VALUES = 1 << 24  # Number of patch-order values in a row group of views.
MAX_PAGE_BYTES = 1 << 30
MAX_HEADER_BYTES = 1 << 16  # Bytes of a page header.
PAGE_SPARE_PER_VALUE, PAGE_SPARE_BYTES = 16, 1024  # Page bytes allowed in addition to values.
# A batch index or image table decompresses to at most TABLE_GROWTH * bytes + TABLE_SPARE_BYTES.
TABLE_GROWTH, TABLE_SPARE_BYTES = 64, 1 << 27
