"""Optional Redis client and the caches kept in it."""
