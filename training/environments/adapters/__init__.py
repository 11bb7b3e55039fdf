"""Adapters: environments of other interfaces, by an import path or a URL."""
