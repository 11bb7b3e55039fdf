"""Shapes, steps, timers and records that all benchmarks share."""
