"""Making pools that a reader must refuse, from golden pools: each differs from a good one in one thing.

`python -m tests.golden.crafting` writes them to tests/golden/refuse/ anew. Nothing here uses the project's
own reader or writer: files are changed as bytes and as Arrow tables, and then named correctly again, so that
what is refused is the one thing that is wrong.
"""
