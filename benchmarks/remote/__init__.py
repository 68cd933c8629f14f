"""Pools in object storage: how fast labels come, and how many bytes it takes."""
