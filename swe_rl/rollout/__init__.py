"""Rollouts: manager of groups of attempts, data source, filters, artifacts."""
