"""The Ray cluster: starting, placement, ownership of processes."""
