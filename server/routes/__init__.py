"""One module per concern."""
