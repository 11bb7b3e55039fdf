"""Error classes of the server, their statuses, and the shapes they are sent in."""
