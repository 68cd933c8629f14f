"""Claim: time per row and memory do not grow with the pool."""
