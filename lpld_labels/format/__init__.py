"""The pool format: schema, records, manifest, image table, views, digests and limits."""
