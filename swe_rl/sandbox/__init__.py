"""Sandboxes: one protocol; local jails, exec server, pool server and their client."""
