"""Real labels that come with the repository, as a pool of our own format."""
