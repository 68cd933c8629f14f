"""Command line of lpld-labels: each command parses, calls the library and prints."""
