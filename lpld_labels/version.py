"""The version of the package; the format has its own in schema.py."""

__version__ = "0.3.0"
