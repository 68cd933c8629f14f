"""An independent, strict reader of label pools, written from SPEC.md alone."""

from .errors import Refused
from .pool import Batch, Pool, open_pool
from .verifying import leftovers, verify

__all__ = ["Batch", "Pool", "Refused", "leftovers", "open_pool", "verify"]
