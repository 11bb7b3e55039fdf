"""vLLM's servers."""
