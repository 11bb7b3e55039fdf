"""The table of jobs, from which the commands, the pipelines and their reference page are made."""
