"""Benchmarks: scoring cost, soak test, load test, fairness between keys and hosted rollouts."""
