"""Load test of a running server."""
