"""The optional Redis and what is kept there."""
