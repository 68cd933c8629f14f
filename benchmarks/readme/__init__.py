"""The README's results, written from the committed JSON files."""
