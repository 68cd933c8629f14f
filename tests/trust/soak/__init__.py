"""Reading without end, beside a writer."""
