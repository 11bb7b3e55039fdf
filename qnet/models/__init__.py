"""Q models and the checkpoints that hold them."""
