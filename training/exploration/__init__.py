"""Growth of exploration trees, and decision groups from played episodes."""
