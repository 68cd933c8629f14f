"""One folder per claim; each writes JSON and, where it helps, a picture."""
