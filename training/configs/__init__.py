"""Job files, and how one is read and overridden."""
