"""Networks by name, their weights, and their BatchNorm layers."""
