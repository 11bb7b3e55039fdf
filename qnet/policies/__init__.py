"""Where candidates come from."""
