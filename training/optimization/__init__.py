"""Training loop, optimisers, and padded or packed batches."""
