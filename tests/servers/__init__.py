"""Real servers on this machine: S3, plain HTTP, and a proxy that makes both slow and unreliable."""
