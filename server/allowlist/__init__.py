"""Allow-list of the parts of a request that reach an upstream with the operator's key."""
