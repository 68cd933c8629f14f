"""Runnable examples: pools in plain PyTorch, timm, Lightning, and SRe2L-style scripts."""
