"""Processes that hold something for a job: the messages to them, and a worker on this machine."""
