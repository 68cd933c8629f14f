"""Changing golden pools into pools that a reader must refuse: each differs from a good one in one thing.

Nothing here uses the project's own reader or writer: files are changed as bytes and as Arrow tables, and then
named correctly again, so that what is refused is the one thing that is wrong. Pools in tests/golden/refuse
are never written again. To add one, change a `Crafted` pool, save it there under a new name, and write
reason.txt beside its files: the stage at which a reader must refuse it at the latest (open, read or verify),
and why.
"""
