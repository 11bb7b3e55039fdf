"""Training loop, optimisers, and batches padded or packed."""
