"""Import label folders of other programs, and export pools for their trainers. Needs no torch."""
