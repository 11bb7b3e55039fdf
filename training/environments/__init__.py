"""Environments, the task selection over them, and their registry."""
