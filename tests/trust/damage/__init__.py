"""Damaged pools: whatever happens to their bytes, no wrong label comes out and no process dies."""
