"""Squeezing: class-wise BatchNorm statistics of real images."""
