"""Tasks: reading every dataset form, images, certification, synthesis."""
