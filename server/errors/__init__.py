"""Error classes of the server, their HTTP statuses and their response bodies."""
