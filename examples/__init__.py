"""Runnable examples: pools in plain PyTorch, Accelerate, Trainer, timm, Lightning, SRe2L-style scripts."""
