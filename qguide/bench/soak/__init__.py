"""Soak."""
