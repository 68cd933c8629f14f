"""Runnable examples: pools in plain PyTorch, Accelerate, Trainer, timm, Lightning, and SRe2L-style scripts."""
