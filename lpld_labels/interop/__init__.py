"""Import label folders of other programs, as data, and export pools for their trainers. Needs no torch."""
