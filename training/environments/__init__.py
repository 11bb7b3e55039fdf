"""Environments, their registry, and the selection of tasks."""
