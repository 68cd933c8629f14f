"""Claim: klt keeps more information in the same bytes than other codecs."""
