"""Watching a run: progress, JSONL metrics, W&B, plots, summary."""
