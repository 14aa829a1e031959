"""Training: advantages, losses, packing, backends, checkpoints, weight export."""
