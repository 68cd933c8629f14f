"""Pools side by side: which came from which, and how they differ."""
