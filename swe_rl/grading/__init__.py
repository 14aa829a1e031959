"""Grading: patches, policy, evaluation in a fresh sandbox, log parsing, verdicts."""
