"""The wait of one key beside the load of another."""
