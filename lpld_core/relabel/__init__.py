"""Building pools: what the teacher says about every batch, and checking it again."""
