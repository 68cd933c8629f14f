"""Claim: students of compressed labels are as good as those of f16."""
