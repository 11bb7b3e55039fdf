"""Architectures and tokenizers trained from scratch."""
