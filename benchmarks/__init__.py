"""One script per claim; each writes JSON and, where it helps, a picture."""
