"""Containers on this machine: the engine's API, hardening, the command supervisor, images."""
