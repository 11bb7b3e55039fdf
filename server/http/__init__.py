"""Everything between a connection and a route: limits, keys, bodies, sessions, the access log."""
