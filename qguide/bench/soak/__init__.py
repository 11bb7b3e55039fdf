"""Soak test: many sessions for a long time, every Q compared with the reference."""
