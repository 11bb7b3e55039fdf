"""Request ids, body limits, access log and drain."""
