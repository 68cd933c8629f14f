"""A second reader of label pools, written from SPEC.md alone: it imports nothing of this project."""

from .files import Refused
from .pool import Batch, Pool, open_pool, verify

__all__ = ["Batch", "Pool", "Refused", "open_pool", "verify"]
