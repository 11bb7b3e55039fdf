"""Settings, read from the environment once."""
