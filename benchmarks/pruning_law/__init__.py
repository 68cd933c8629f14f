"""Claim: what a pruning costs follows from the number of distinct views of a class that it keeps."""
