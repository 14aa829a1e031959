"""Notices that a policy has collapsed, and knows the newest checkpoint from before."""
