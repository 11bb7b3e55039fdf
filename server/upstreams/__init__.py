"""Upstream policies: built, watched and, for vLLM, supervised."""
