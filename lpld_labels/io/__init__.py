"""Local and remote files: addresses, storage, caches, prefetching, retries and Parquet pages."""
