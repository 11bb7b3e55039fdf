"""Trials of guided against unguided episodes that may be looked at after every episode."""
