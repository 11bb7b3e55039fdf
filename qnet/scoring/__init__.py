"""Scorers: the naive reference, the shared-prefix ones, and a vLLM trunk."""
