"""Guided and scored steps, shared by all dialects."""
