"""Upstream policies: construction, health checks, and supervision of a vLLM child process."""
