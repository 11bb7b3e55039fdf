"""Rows benchmark: time and memory of the jobs that read rows, by the number of rows."""
