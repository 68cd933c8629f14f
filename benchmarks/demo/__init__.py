"""Claim: soft labels, class-wise images and klt pay, on a data set that ships in a package."""
