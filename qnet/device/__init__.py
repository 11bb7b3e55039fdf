"""The one thread that owns the device, its micro-batches and its losses."""
