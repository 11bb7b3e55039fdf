"""Benchmark of the scoring engine against baselines and vLLM."""
