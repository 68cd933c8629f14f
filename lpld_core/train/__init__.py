"""Training: students from pools and teachers from images."""
