"""Looking at pools: is one whole, and what is in it."""
