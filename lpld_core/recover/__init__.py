"""Recovery: a few images per class, made out of what a teacher remembers of its training data.

settings  method, sizes, the papers' presets, and which images are optimised together
losses    cross-entropy and the distance to BatchNorm statistics
optimise  from noise to the last iterate, one group at a time
rded      stitching crops of real images instead
folder    the image folder of a run
run       filling it: resumable, divisible
"""
