"""Pools on disk: shards, the index, reader and writer, staging and commit, sizes."""
