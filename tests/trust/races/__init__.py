"""Processes that use one pool at the same time."""
