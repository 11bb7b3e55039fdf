"""Fairness benchmark: latency of one key under the load of another."""
