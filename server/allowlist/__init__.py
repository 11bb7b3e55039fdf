"""What of a caller's request reaches an upstream, which is asked with the operator's key."""
