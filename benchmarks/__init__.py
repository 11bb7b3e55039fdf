"""Measurements that are not part of the product; run from a clone."""
