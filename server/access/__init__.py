"""API keys, admission and rate limits."""
