"""Images for the method: real ones, rendered batches, and doing it ahead of time."""
