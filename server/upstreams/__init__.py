"""Upstreams."""
