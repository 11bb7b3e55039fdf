"""Benchmark of the scoring engine against its baselines and a real vLLM."""
