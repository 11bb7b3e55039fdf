"""Versioned records, run folders and augmentation: everything that jobs read and write."""
