"""Training backends: one protocol, FSDP2 (Megatron-core has its place beside it)."""
