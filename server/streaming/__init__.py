"""Server-sent events, for the streams of every dialect."""
