"""Guidance."""
