"""Benchmarks: scoring cost, soak test, load test and fairness between keys."""
