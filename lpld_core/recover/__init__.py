"""Recovery: a few images per class, made out of what a teacher remembers of its training data.

settings       what a run is told; the papers' presets
plan           which images are optimised together
views          how an image is shown to the teacher
losses         cross-entropy and the distance to BatchNorm statistics
optimise       from noise to the last iterate, one group at a time
rded           stitching crops of real images instead
folder, run    the image folder of a run: resumable, divisible
contact_sheet  one picture of it
"""
