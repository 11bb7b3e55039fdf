"""Pipelines: several jobs, started in the order of what they read and write."""
