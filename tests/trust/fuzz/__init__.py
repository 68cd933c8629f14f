"""Fuzzing of every parser that meets bytes from strangers: `python -m tests.trust.fuzz`."""
