"""Small parts that no library has as we need them."""
