"""Claim: reading, writing, importing, pruning, labelling and the method are fast; one module per part."""
