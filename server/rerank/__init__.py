"""Jina's, Cohere's and vLLM's rerank and score dialects."""
