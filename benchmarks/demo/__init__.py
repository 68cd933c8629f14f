"""Claim: soft labels and klt improve students of a data set that ships in a package."""
