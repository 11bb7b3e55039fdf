"""Ranking of texts by a query, for environments with a search."""
