"""Evaluation of a checkpoint or endpoint: resolve rate, intervals, summary."""
