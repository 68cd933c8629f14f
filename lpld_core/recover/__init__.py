"""Recovery: a few images per class, synthesised from a teacher."""
