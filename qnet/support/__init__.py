"""Small pieces that no library has as we need them."""
