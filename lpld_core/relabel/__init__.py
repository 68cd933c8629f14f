"""Building pools: label every batch with the teacher, and verify the labels."""
