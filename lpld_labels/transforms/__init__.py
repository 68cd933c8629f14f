"""Make pools from pools: prune, encode, plan, copy."""
