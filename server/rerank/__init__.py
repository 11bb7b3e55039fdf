"""Rerank, score, classify and pooling dialects: Jina's, Cohere's, vLLM's, TEI's and Voyage's."""
