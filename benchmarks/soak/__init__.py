"""Soak test: many growing sessions, with memory and Q checked against budget and reference."""
