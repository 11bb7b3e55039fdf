"""Q models."""
