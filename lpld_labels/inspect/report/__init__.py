"""The report: what a pool is, what it weighs, what is in it, how it is spread, as one page."""
