"""Benchmarks: scoring speed, soak runs and load tests, from outside the code they measure."""
