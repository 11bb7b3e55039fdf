"""Optimization."""
