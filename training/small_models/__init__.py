"""Small models and tokenizers for training from scratch."""
