"""Claim: the paper's accuracy tables under pruning, and ours at equal bytes."""
