"""Benchmark of reading histories ahead."""
