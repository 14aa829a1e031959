"""FSDP2 on transformers models: gloo on CPUs, NCCL on GPUs."""
