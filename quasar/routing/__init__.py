"""Which arm serves a request."""
