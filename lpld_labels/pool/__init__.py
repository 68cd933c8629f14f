"""Pools on disk: storage, shards, the index, reader and writer, staging and commit, sizes."""
