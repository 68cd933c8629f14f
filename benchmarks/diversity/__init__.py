"""Claim: class-wise images are more diverse than cross-class ones."""
