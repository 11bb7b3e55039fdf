"""Measurement."""
