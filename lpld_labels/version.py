"""The version of the package. The format has its own version, in schema.py."""

__version__ = "0.3.0"
