"""Claim: the paper's storage tables, and how little is left of them."""
