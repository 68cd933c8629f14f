"""Recovery: a few images per class, made from what a teacher remembers of its training data."""
