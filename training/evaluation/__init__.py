"""Comparison of methods on the same tasks: episodes, statistics and reports."""
