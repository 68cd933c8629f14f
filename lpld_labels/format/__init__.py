"""What a pool is: its schema, records, manifest, image table, views, digests and bounds."""
