"""Recorded episodes of any agent, in the formats that others write, as records of the jobs."""
