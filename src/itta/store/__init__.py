"""A model on disk, checkpoints of a training, and export to other formats."""
