"""Versioned records, run folders and augmentation: all that jobs read and write."""
