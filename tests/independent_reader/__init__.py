"""A second reader of label pools, written from SPEC.md alone: it imports nothing of this project."""

from .manifest import Refused
from .pool import Pool, verify

__all__ = ["Pool", "Refused", "verify"]
