"""Search strategies that grow exploration trees."""
