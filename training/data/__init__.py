"""Records and what is done to them before training."""
