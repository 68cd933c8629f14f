"""Label folders of other programs: imported as data, exported for their trainers. Needs no torch."""
