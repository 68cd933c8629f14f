"""Pools from pools: pruning, encoding, planning."""
