"""Request bodies: parsed and validated once, within limits, and off the event loop where long."""
